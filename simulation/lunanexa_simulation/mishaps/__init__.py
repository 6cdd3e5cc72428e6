"""What may befall a fleet at any time, each with its end: a mishap returns when what it broke is well again.

A mishap has something in its hands, of which no other mishap has the same: a machine is not started while it starts."""

import enum
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from lunanexa_simulation.mishaps import controllers, links, nodes, operators
from lunanexa_simulation.mishaps.field import Befall


class Hands(enum.Enum):
    """What a mishap has in its hands; of controllers, nodes and what is a node's there are several."""

    CONTROLLER = "controller"
    CONTROLLER_CLOCK = "a controller's clock"
    JOURNAL = "journal"
    OPERATOR = "operator"
    TRUST = "trust"
    NODE = "node"
    MEMORY = "memory"
    LINK = "link"
    DATA_LINK = "data link"
    NODE_CLOCK = "a node's clock"
    CALLERS = "callers"


@attrs.frozen
class Kind:
    """One kind of mishap."""

    name: str
    hands: Hands
    befall: Befall
    since: int
    """The first drawing that knows it."""
    lengthy: bool
    """It takes so long that it comes only where mishaps go on for longer than their seed has it."""


def _kinds(hands: Hands, *mishaps: Befall, since: int = 1, lengthy: bool = False) -> Sequence[Kind]:
    return [Kind(mishap.__name__.replace("_", " "), hands, mishap, since, lengthy) for mishap in mishaps]


KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        *_kinds(
            Hands.CONTROLLER,
            controllers.controller_dies,
            controllers.controller_is_restarted,
            controllers.controller_is_cut_from_the_journal,
            controllers.controller_dies_with_a_full_disk,
            controllers.connections_break,
        ),
        *_kinds(Hands.JOURNAL, controllers.journal_fails),
        *_kinds(Hands.CONTROLLER_CLOCK, links.controllers_clock_lies),
        *_kinds(Hands.OPERATOR, operators.operator_changes_their_mind, operators.operator_empties_a_node),
        *_kinds(Hands.TRUST, operators.trust_is_rotated),
        *_kinds(
            Hands.NODE,
            nodes.agent_dies,
            nodes.engine_dies,
            nodes.engine_hangs,
            nodes.machine_reboots,
            nodes.agent_and_engine_die,
            nodes.nodes_disk_fails,
            nodes.processes_are_slow,
            operators.node_is_revoked,
        ),
        *_kinds(Hands.MEMORY, nodes.memory_is_taken),
        *_kinds(Hands.LINK, links.nothing_passes, links.packets_are_slow),
        *_kinds(Hands.DATA_LINK, links.data_does_not_pass),
        *_kinds(Hands.NODE_CLOCK, links.nodes_clock_lies),
        *_kinds(Hands.CONTROLLER, controllers.controllers_machine_goes_silent, since=2),
        *_kinds(Hands.NODE, nodes.machine_goes_silent, since=2),
        *_kinds(Hands.LINK, links.packets_are_lost, links.answers_are_lost, links.link_is_narrow, since=2),
        *_kinds(Hands.DATA_LINK, links.data_link_is_bad, since=2),
        *_kinds(Hands.CALLERS, links.callers_link_is_bad, since=2),
        *_kinds(Hands.NODE, nodes.owner_forbids_engines, since=3),
        *_kinds(Hands.LINK, links.nothing_passes_for_long, since=3, lengthy=True),
        *_kinds(Hands.DATA_LINK, links.data_does_not_pass_for_long, since=3, lengthy=True),
        *_kinds(Hands.CALLERS, links.callers_are_cut_off, since=3, lengthy=True),
    )
}
"""By name, in the order in which a drawing knows them: new ones come at the end, with a drawing of their own. There is
one journal, operator, trust and place of callers; of the others one each."""
NEWEST: Final = max(kind.since for kind in KINDS.values())
"""The drawing that knows all."""
