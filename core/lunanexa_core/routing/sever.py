"""Which grants lead nowhere any more, by what happened to a node: whoever waits for an answer there waits in vain.

A node that is lost has no lease, for it counts from before we do, and an agent that began anew had none until we heard
of it: either way the node's data listener has let go of what passed it. Where its machine has no power, nobody hears
that. What passes no data listener does not depend on its agent, and goes on. A revoked node is not to be believed,
whichever way its answers come. A drain or a planned stop severs nothing.
"""

from collections.abc import Iterable, Iterator

import attrs

from lunanexa_core.events import Event, Liveness, LivenessChanged, NodeBooted, NodeRevoked
from lunanexa_core.ids import NodeId, StartId, WorkloadId
from lunanexa_core.observed import Observed


@attrs.frozen(kw_only=True)
class Severed:
    """A workload's grant of this start holds no more. ``failure`` is for its attempt: ``node_lost``,
    ``node_restarted`` or ``node_revoked``."""

    workload: WorkloadId
    start: StartId
    failure: str


def severed(observed: Observed, events: Iterable[Event]) -> Iterator[Severed]:
    """The grants in use that ``events``, which are durable, put an end to."""
    for event in events:
        match event:
            case LivenessChanged(node=node, liveness=Liveness.LOST):
                yield from _of(observed, node, "node_lost", door_only=True)
            case NodeBooted(node=node):
                yield from _of(observed, node, "node_restarted", door_only=True)
            case NodeRevoked(node=node):
                yield from _of(observed, node, "node_revoked", door_only=False)
            case _:
                pass


def _of(observed: Observed, node: NodeId, failure: str, *, door_only: bool) -> Iterator[Severed]:
    for workload, held in observed.held.items():
        if held.node == node and (held.by_door or not door_only):
            yield Severed(workload=workload, start=held.start, failure=failure)
