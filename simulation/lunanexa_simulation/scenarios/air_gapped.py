"""A node without a network, over rounds of bundles: its agent is killed at any moment, media are tampered with, old
bundles come again, its store is lost. What runs is at each moment what one of the authority's bundles said, never an
older one than before; and its reports say so."""

from typing import Final

import attrs
import trio

from lunanexa_core.southbound.bundle import BundleRefusal
from lunanexa_simulation.node_store import NodeStoreState
from lunanexa_simulation.run import Run
from lunanexa_simulation.site import WITHIN_MS, Site
from lunanexa_simulation.site_eyes import SiteEyes

ROUNDS: Final = 5
DITHER_MS: Final = 3_000


async def main(run: Run) -> None:
    """The scenario."""
    async with trio.open_nursery() as nursery:
        site = Site(run, nursery)
        SiteEyes(run, site)
        await site.start()
        with site.watched("what runs is never older than what ran", site.went_back):
            for generation in range(1, ROUNDS + 1):
                await _round(site, generation)
            await _store_lost(site)
        nursery.cancel_scope.cancel("the scenario is over")


async def _round(site: Site, generation: int) -> None:
    site.bring(f"{generation}", site.made(generation))
    await site.dither(f"round {generation}", DITHER_MS)
    await site.kill_and_start()
    await site.until_runs(generation)
    await site.until_clean(generation)
    site.bring_forged(f"forged after {generation}", site.made(generation + 1))
    site.bring(f"old after {generation}", attrs.evolve(site.made(generation, words=9), baseline=True))
    wanted = BundleRefusal.BAD_SIGNATURE.value, BundleRefusal.CONTENT_CHANGED.value
    told = f"both are refused, and it is told ({generation})"
    await site.until(told, lambda: site.refused(*wanted), within_ms=WITHIN_MS)
    site.check(f"and nothing runs by them ({generation})", site.running() == generation, site.running())
    del site.media.bundles[f"forged after {generation}"], site.media.bundles[f"old after {generation}"]


async def _store_lost(site: Site) -> None:
    """What was in force lies in the inbox still, and its first is a baseline."""
    site.kill()
    site.machine.reboot()
    site.disk.state(NodeStoreState).facts.clear()
    site.disk.state(NodeStoreState).replicas.clear()
    await site.start()
    old = BundleRefusal.ROLLED_BACK.value, BundleRefusal.NO_BASELINE.value
    await site.until("a lost store takes nobody back", lambda: site.refused(*old), within_ms=WITHIN_MS)
    site.check("and nothing runs", site.running() is None, site.running())
    site.bring("baseline", attrs.evolve(site.made(ROUNDS + 1), baseline=True))
    await site.until_runs(ROUNDS + 1)
    await site.until_clean(ROUNDS + 1)
