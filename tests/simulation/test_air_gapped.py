"""What is asked of a machine without a network at each instant: each invariant sees its own fault."""

from collections.abc import Awaitable, Callable

import attrs
import pytest
import structlog
import trio

from lunanexa_apps.codec import decode, encode
from lunanexa_core.ids import StartId
from lunanexa_core.southbound.outbox import OutboxReport, RefusedBundle, SignedReport
from lunanexa_simulation.documents import StateDocument
from lunanexa_simulation.engine_program import LOG_SECRET
from lunanexa_simulation.node_store import NodeStoreState
from lunanexa_simulation.picture import picture_of_site
from lunanexa_simulation.run import Manner, Run, RunResult, run_simulated
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.site import CLUSTER, Site
from lunanexa_simulation.site_eyes import SiteEyes
from lunanexa_simulation.verdicts import Verdict


def at_a_site(fault: Callable[[Site, SiteEyes], Awaitable[None]]) -> RunResult:
    """A site where the first bundle is in force and runs, and then a fault."""

    async def main(run: Run) -> None:
        async with trio.open_nursery() as nursery:
            site = Site(run, nursery)
            eyes = SiteEyes(run, site)
            await site.start()
            site.bring("1", site.made(1))
            await site.until_runs(1)
            await fault(site, eyes)
            await trio.sleep(60)
            nursery.cancel_scope.cancel("the test is over")

    return run_simulated(main, 1, horizon_ms=600_000)


async def nothing(_: Site, _eyes: SiteEyes) -> None:
    """No fault."""


async def counter_set_back(site: Site, _: SiteEyes) -> None:
    site.media.floor = 0


async def counter_ahead(site: Site, _: SiteEyes) -> None:
    site.media.floor = 2


async def not_in_the_store(site: Site, _: SiteEyes) -> None:
    site.disk.state(NodeStoreState).facts.pop("bundle")


async def second_engine(site: Site, eyes: SiteEyes) -> None:
    eyes.sight.running = lambda: [*site.living(), *((name, StartId("another")) for name, _ in site.living())]


async def key_in_a_log(site: Site, _: SiteEyes) -> None:
    structlog.get_logger().info("leak", header=f"Bearer {site.engine_secret}")


async def log_of_an_engine_in_a_log(_: Site, _eyes: SiteEyes) -> None:
    structlog.get_logger().info("leak", line=f"it said {LOG_SECRET}")


async def key_in_a_report(site: Site, _: SiteEyes) -> None:
    forge(site, refused=(RefusedBundle(name=site.engine_secret, digest="", refusal="not_readable"),))


async def report_of_another_number(site: Site, _: SiteEyes) -> None:
    forge(site, number=7_000)


async def report_of_a_strange_bundle(site: Site, _: SiteEyes) -> None:
    forge(site, bundle="0" * 64)


async def report_by_somebody_else(site: Site, _: SiteEyes) -> None:
    newest = max(site.media.reports)
    signed = decode(SignedReport, site.media.reports[newest])
    site.media.reports[newest] = encode(attrs.evolve(signed, payload=signed.payload + b" "))


def forge(site: Site, **changes: object) -> None:
    """The newest report says something else, signed by the node itself."""
    newest = max(site.media.reports)
    signed = decode(SignedReport, site.media.reports[newest])
    told = attrs.evolve(decode(OutboxReport, signed.payload), **changes)  # type: ignore[arg-type]  # the test's business
    document = site.key.sign(encode(told))
    site.media.reports[newest] = encode(
        attrs.evolve(signed, payload=document.payload, key_id=document.key_id, signature=document.signature)
    )


async def follows_what_nobody_signed(site: Site, eyes: SiteEyes) -> None:
    site.signed.clear()
    eyes.followed = None


async def follows_by_leaving_one_out(site: Site, eyes: SiteEyes) -> None:
    site.bring("2", site.made(2))
    await site.until_runs(2)
    eyes.followed = site.made(3)


FAULTS = [
    ("fences_never_fall", counter_set_back),
    ("kept_then_counted", counter_ahead),
    ("kept_then_counted", not_in_the_store),
    ("one_process_each", second_engine),
    ("no_secret_shown", key_in_a_log),
    ("no_secret_shown", log_of_an_engine_in_a_log),
    ("no_secret_shown", key_in_a_report),
    ("reports_are_its_own", report_of_another_number),
    ("reports_are_its_own", report_of_a_strange_bundle),
    ("reports_are_its_own", report_by_somebody_else),
    ("bundles_follow", follows_what_nobody_signed),
    ("bundles_follow", follows_by_leaving_one_out),
]


def test_a_healthy_site_passes_and_every_invariant_is_asked() -> None:
    result = at_a_site(nothing)
    assert result.verdict is Verdict.HELD, (result.problem, result.detail, *result.tail)
    assert set(result.asked) == {name for name, _ in FAULTS}
    assert min(result.asked.values()) > 20


@pytest.mark.parametrize(("invariant", "fault"), FAULTS, ids=[fault.__name__ for _, fault in FAULTS])
def test_a_planted_fault_is_seen(invariant: str, fault: Callable[[Site, SiteEyes], Awaitable[None]]) -> None:
    result = at_a_site(fault)
    assert result.verdict is Verdict.SAFETY_BROKEN, (result.problem, *result.tail)
    assert (result.problem or "").startswith(f"{invariant}: "), result.problem


def test_how_it_stands_at_an_instant_is_shown() -> None:
    sites: list[Site] = []
    shown: list[StateDocument] = []
    manner = Manner(attend_site=sites.append, until_ms=3_000, at_stop=lambda: shown.extend(picture_of_site(sites[0])))
    assert SCENARIOS["air-gapped"].run(3, manner).verdict is Verdict.HELD
    parts = {part.about: part.lines for part in shown}
    (engine,) = parts["engines"]
    assert parts["the agent"][:2] == (f"follows generation 1 of {CLUSTER}", f"tiny: ready, {engine.split()[0]}")
    assert "in the inbox: 1" in parts["media"][0]
    assert parts["media"][1] == "taken: 1 blobs; the counter stands at 1"
    assert parts["media"][2].endswith("says generation 1, ready")
    assert len(parts["the end of the trace"]) > 5
