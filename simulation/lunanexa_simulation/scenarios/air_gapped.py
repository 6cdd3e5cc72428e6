"""A node without a network, over rounds of bundles: its agent is killed at any moment, media are pulled out and
tampered with, old bundles come again, its store is lost. What runs is at each moment what one of the authority's
bundles said, never an older one than before; and its reports say so."""

from typing import Any, Final

import attrs
import trio

from lunanexa_core.ids import ClusterId, NodeId
from lunanexa_core.southbound.bundle import Bundle, BundleRefusal
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
            copies = []
            for generation in range(1, ROUNDS + 1):
                await _round(site, generation)
                copies.append(site.copy_of_store())
            await _store_lost(site, ROUNDS, NodeStoreState())
            await _store_lost(site, ROUNDS + 1, copies[-1])
        nursery.cancel_scope.cancel("the scenario is over")


async def _round(site: Site, generation: int) -> None:
    site.bring(f"{generation}", site.made(generation))
    await site.dither(f"round {generation}", DITHER_MS)
    site.media.plugged_in = False
    await site.kill_and_start()
    await site.dither(f"without media {generation}", DITHER_MS)
    site.media.plugged_in = True
    await site.until_runs(generation)
    await site.until_clean(generation)
    refusals = _tampered(site, generation)
    told = f"each that was tampered with is refused, and why is told ({generation})"
    await site.until(told, lambda: site.refused() == refusals, within_ms=WITHIN_MS)
    site.check(f"and nothing runs by them ({generation})", site.running() == generation, site.running())
    for name in refusals:
        del site.media.bundles[name]


def _tampered(site: Site, generation: int) -> dict[str, str]:
    """Brings what may not be followed after ``generation``; why not, by name."""
    same, following = site.made(generation, words=9), site.made(generation + 1, words=9)
    elsewhere, others = NodeId("edge-2"), ClusterId("plant-8")
    for name, bundle in (
        (BundleRefusal.CONTENT_CHANGED, attrs.evolve(same, baseline=True)),
        (BundleRefusal.SKIPPED, site.made(generation + 2)),
        (BundleRefusal.OTHER_NODE, _of(following, node=elsewhere)),
        (BundleRefusal.OTHER_CLUSTER, _of(following, cluster=others)),
        (BundleRefusal.INCONSISTENT, attrs.evolve(following, document=same.document)),
    ):
        site.bring(name.value, bundle)
    site.bring_forged(BundleRefusal.BAD_SIGNATURE.value, following)
    site.bring(BundleRefusal.BLOB_CHANGED.value, following, content=b"other weights")
    site.bring(BundleRefusal.BLOB_MISSING.value, attrs.evolve(following, baseline=True))
    site.media.bundles[BundleRefusal.BLOB_MISSING.value].blobs.clear()
    if generation > 1:
        site.bring(BundleRefusal.ROLLED_BACK.value, site.made(generation - 1, words=9))
    return {name: name for name in site.media.bundles if not name.isdecimal()}


def _of(bundle: Bundle, **members: Any) -> Bundle:
    """Somebody else's."""
    return attrs.evolve(bundle, **members, document=attrs.evolve(bundle.document, **members))


async def _store_lost(site: Site, newest: int, copy: NodeStoreState) -> None:
    """It is what it was long ago, or nothing. What was in force lies in the inbox still; two of it are baselines."""
    site.kill()
    site.machine.reboot()
    site.set_back(copy)
    await site.start()
    old = {name: BundleRefusal.NO_BASELINE.value for name in site.media.bundles}
    old |= {name: BundleRefusal.ROLLED_BACK.value for name in ("1", "baseline") if name in old}
    await site.until(f"nobody is taken back ({newest})", lambda: site.refused() == old, within_ms=WITHIN_MS)
    await site.dither(f"store lost {newest}", 60_000)
    site.check(f"and nothing runs ({newest})", site.running() is None, site.running())
    site.bring("baseline", attrs.evolve(site.made(newest + 1), baseline=True))
    await site.until_runs(newest + 1)
    await site.until_clean(newest + 1)
