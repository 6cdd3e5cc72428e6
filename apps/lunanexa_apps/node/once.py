"""One round of an agent: a heartbeat, the newest document, and what it takes to make that true. Then it goes, and what
runs goes on running without it."""

from typing import Final

import attrs
import trio

from lunanexa_apps.node.control import ControlRefusal
from lunanexa_apps.node.enrolment import Admission
from lunanexa_apps.node.pulse import Pulse
from lunanexa_apps.node.service import open_agent
from lunanexa_apps.node.settings import NodePorts, NodeSettings, Shutdown
from lunanexa_core.southbound.documents import DocumentRefusal
from lunanexa_core.southbound.heartbeat import RefusedAssignment, ReplicaReport, ReplicaState

_LOOK_AGAIN_S: Final = 1.0


@attrs.frozen(kw_only=True)
class Round:
    """What came of it."""

    refusal: ControlRefusal | None
    """The controller's."""
    order: tuple[int, int] | None
    """(Epoch, generation) of the document that is followed."""
    document_refusal: DocumentRefusal | None
    """Why the newest one is not."""
    settled: bool
    """Whether nothing was left to do."""
    unattended: bool
    """Whether it leaves engines that an agent must end when the lease has run out."""
    replicas: tuple[ReplicaReport, ...]
    refused: tuple[RefusedAssignment, ...]

    @property
    def well(self) -> bool:
        """Whether all that is desired is so."""
        held_back = self.refusal is not None or self.document_refusal is not None or bool(self.refused)
        failed = any(one.state is ReplicaState.FAILED for one in self.replicas)
        return self.settled and not (held_back or failed or self.unattended)


async def run_node_once(
    ports: NodePorts, settings: NodeSettings, *, admission: Admission | None = None, limit_s: float
) -> Round:
    """Returns when nothing is left to do, or after ``limit_s``. Raises ``PortUnavailable`` when no controller could be
    asked; engines go on in any case."""
    agent = await open_agent(ports, settings, Shutdown(), admission)
    settled, refusal, news = False, None, Pulse()
    agent.replicas.watchers.append(news.set)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(agent.lease.run, agent.replicas.any_outlives_no_lease)
        nursery.start_soon(agent.replicas.run, agent.recovered)
        with trio.move_on_after(limit_s):
            refusal = await agent.session.ask_once(admission)
            if refusal is None:
                # Nothing is started without a lease, and an engine may take longer than one to come up.
                nursery.start_soon(agent.session.beat)
            while not agent.replicas.settled:
                with trio.move_on_after(_LOOK_AGAIN_S):
                    await news.wait()
            settled = True
        replicas, refused = agent.replicas.reports(), agent.replicas.refused
        unattended = agent.replicas.any_outlives_no_lease()
        nursery.cancel_scope.cancel("the round is over")
    await agent.session.last_heartbeat()
    return Round(
        refusal=refusal,
        order=None if agent.trust.accepted is None else agent.trust.accepted.order,
        document_refusal=agent.session.refusal,
        settled=settled,
        unattended=unattended,
        replicas=replicas,
        refused=refused,
    )
