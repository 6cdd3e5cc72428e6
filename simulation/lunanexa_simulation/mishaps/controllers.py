"""What may befall controllers and the journal that they share."""

import attrs

from lunanexa_simulation.controller_host import PORT
from lunanexa_simulation.faults import crash_controller, cut_from_journal, lose_controller
from lunanexa_simulation.mishaps.disks import disk_fails
from lunanexa_simulation.mishaps.field import LONG_MS, Field, a_while
from lunanexa_simulation.rng import Stream


async def controller_dies(field: Field, number: int, draw: Stream) -> None:
    host = field.world.controllers[number]
    crash_controller(field.world, host, keep_unsynced=draw.random() < 0.5)
    await a_while(draw)
    await field.start_controller(host)


async def controllers_machine_goes_silent(field: Field, number: int, draw: Stream) -> None:
    host = field.world.controllers[number]
    lose_controller(field.world, host, keep_unsynced=draw.random() < 0.5)
    await a_while(draw, 4 * LONG_MS)
    await field.start_controller(host)


async def controller_is_restarted(field: Field, number: int, draw: Stream) -> None:
    """In order, as an upgrade does it."""
    host = field.world.controllers[number]
    field.world.trace(f"{host.host}: the controller stops")
    await host.stop()
    await a_while(draw, 2_000)
    await field.start_controller(host)


async def controller_is_cut_from_the_journal(field: Field, number: int, draw: Stream) -> None:
    host = field.world.controllers[number]
    cut_from_journal(field.world, host)
    await a_while(draw)
    cut_from_journal(field.world, host, cut=False)


async def connections_break(field: Field, number: int, _draw: Stream) -> None:
    host = field.world.controllers[number]
    field.world.trace(f"{host.host}: every connection to it breaks")
    field.world.network.cut(host.host, PORT)


async def journal_fails(field: Field, _: int, draw: Stream) -> None:
    async with field.store:
        await disk_fails(field.world, "the journal", field.world.controllers[0].disk, draw)


async def controller_dies_with_a_full_disk(field: Field, number: int, draw: Stream) -> None:
    """There is room again when it starts."""
    world, host = field.world, field.world.controllers[number]
    async with field.store:
        usual = host.disk.faults
        world.trace("the journal: the disk is full")
        host.disk.faults = attrs.evolve(usual, full=True)
        await a_while(draw)
        crash_controller(world, host)
        world.trace("the journal: the disk is well again")
        host.disk.faults = usual
    await field.start_controller(host)
