"""What an operator does at the worst of times. What was asked is done, or told to come again."""

from typing import Final

from lunanexa_core.ids import NodeId
from lunanexa_core.southbound.documents import Directive
from lunanexa_ports.http_client import HttpBroken, HttpUnreachable
from lunanexa_simulation.faults import crash_agent
from lunanexa_simulation.mishaps.field import LONG_MS, Field, a_while
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world import World

ENROLLED_MS: Final = 20_000


async def operator_changes_their_mind(field: Field, _: int, draw: Stream) -> None:
    """Fewer replicas or more, with other settings: each change is a new generation for every node."""
    world = field.world
    replicas, slots = draw.randint(1, len(world.nodes)), draw.randint(1, 3)
    try:
        world.turn_clients()
        status, answer = await world.ask_to_deploy(replicas=replicas, slots=slots)
    except (HttpUnreachable, HttpBroken):
        world.trace("the operator finds nobody")
    else:
        world.check("an operator is obeyed, or told to come again", status in (200, 503), answer)


async def operator_empties_a_node(field: Field, _: int, draw: Stream) -> None:
    """Whatever else befalls it; it is given back in the end, however long there is nobody to be told."""
    world = field.world
    node, directive = draw.choice(world.nodes).name, draw.choice((Directive.DRAIN, Directive.CORDON))
    await _directed(world, node, directive)
    await a_while(draw, 2 * LONG_MS)
    await world.until_told(
        "the node is given back",
        lambda: _directed(world, node, Directive.ACTIVE),
        within_ms=field.back_ms,
        every_ms=500,
    )


async def node_is_revoked(field: Field, number: int, draw: Stream) -> None:
    """Its agent is replaced later, by one with a token. One that has not enrolled in time gets another token: what the
    first one names as the fleet's authority may have been exchanged meanwhile."""
    world, node = field.world, field.world.nodes[number]
    told = await _told(world, "POST", f"/admin/v1/nodes/{node.name}/revoke", {"reason": "simulated"})
    if told is False:
        return
    world.trace(f"{node.name}: it is revoked" if told else f"{node.name}: it may be revoked")
    await a_while(draw)

    async def let_in() -> bool:
        world.turn_clients()
        if not await world.try_to_let_in(number, again=True):
            return False
        crash_agent(world, number)
        await world.start_agent(number)
        return await world.comes_true(lambda: node.token is None, within_ms=ENROLLED_MS)

    await world.until_told("a revoked node is let in again", let_in, within_ms=field.back_ms, every_ms=500)


async def trust_is_rotated(field: Field, _: int, draw: Stream) -> None:
    """While whatever else happens; a second one waits for the first."""
    if await _told(field.world, "POST", "/admin/v1/trust/rotate", None, also=(409,)):
        field.world.trace("the operator: authority and signing key are rotated")
    await a_while(draw)


async def _directed(world: World, node: NodeId, directive: Directive) -> bool:
    return bool(await _told(world, "PUT", f"/admin/v1/nodes/{node}/directive", {"directive": directive.value}))


async def _told(world: World, method: str, target: str, body: object, also: tuple[int, ...] = ()) -> bool | None:
    """Whether it was done; ``None``: the answer was lost, and nobody knows."""
    world.turn_clients()
    try:
        status, answer = await world.operate(method, target, body)
    except HttpUnreachable:
        return False
    except HttpBroken:
        return None
    world.check("an operator is obeyed, or told to come again", status in (200, 503, *also), answer)
    return status == 200
