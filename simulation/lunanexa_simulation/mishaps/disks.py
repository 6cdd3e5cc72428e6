"""The ways in which a disk fails."""

from lunanexa_simulation.disk import DiskFaults, SimulatedDisk
from lunanexa_simulation.mishaps.field import a_while
from lunanexa_simulation.rng import Stream
from lunanexa_simulation.world import World


async def disk_fails(world: World, name: str, disk: SimulatedDisk, draw: Stream) -> None:
    """In one of them, for a while."""
    usual = disk.faults
    told, faults = draw.choice(
        (
            ("is full", DiskFaults(full=True, delay_ms=usual.delay_ms)),
            ("is not there", DiskFaults(unavailable=True, delay_ms=usual.delay_ms)),
            ("does not answer", DiskFaults(unknown_outcomes=draw.randint(1, 4), delay_ms=usual.delay_ms)),
            ("is slow", DiskFaults(delay_ms=draw.randint(50, 4_000))),
        )
    )
    world.trace(f"{name}: the disk {told}")
    disk.faults = faults
    await a_while(draw)
    world.trace(f"{name}: the disk is well again")
    disk.faults = usual
