"""The timeline: what is seen of a run, and the page that shows it."""

from html.parser import HTMLParser

import attrs
import pytest

from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Manner, Run
from lunanexa_simulation.scenarios import SCENARIOS, Scenario
from lunanexa_simulation.timeline import Mark, Span, Timeline, Tone, Track
from lunanexa_simulation.timeline_page import timeline_page
from lunanexa_simulation.verdicts import SafetyBroken

VOID = {"meta", "br"}


class Reader(HTMLParser):
    """Bars by their class with what pointing at them shows; fails where tags don't match."""

    def __init__(self) -> None:
        super().__init__()
        self.bars: list[tuple[str, str]] = []
        self.rows: dict[str, set[str]] = {}
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attributes}
        self.sources += [named[name] for name in ("src", "href") if name in named]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "rect":
            self.bars.append((named["class"], ""))
            self.rows.setdefault(named["class"], set()).update({named["y"]} if "y" in named else ())

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attributes)
        self.handle_endtag(tag)

    def handle_data(self, data: str) -> None:
        if self.open[-2:] == ["rect", "title"]:
            self.bars[-1] = (self.bars[-1][0], data)


async def broken(_: Run) -> None:
    raise SafetyBroken("one_receipt: <b>two</b>")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def test_the_page_shows_each_span_and_needs_nothing_else() -> None:
    def request(begin_ms: int, end_ms: int, tone: Tone) -> Span:
        return Span(
            lane="sim", track=Track.REQUEST, label=f"wl_{begin_ms}", begin_ms=begin_ms, end_ms=end_ms, tone=tone
        )

    document = run_document("planted", Scenario(name="planted", summary="", main=broken).run(1), None)
    document = attrs.evolve(document, virtual_ms=9_000)
    spans = [
        Span(lane="sim", track=Track.FAULT, label="disk <full>", begin_ms=100, end_ms=4_000),
        request(0, 1_000, Tone.GOOD),
        request(500, 2_000, Tone.BAD),
        request(2_000, 3_000, Tone.GOOD),
    ]
    timeline = Timeline(spans=spans, marks=[Mark(lane="sim", label="hit", at_ms=5_000, broken=True)], lanes=["sim"])
    page = timeline_page(timeline, document)
    reader = read(page)
    told = [title for _, title in reader.bars if title]
    assert told == [
        "disk <full>, 100 to 4000 ms",
        "wl_0, 0 to 1000 ms: served",
        "wl_500, 500 to 2000 ms: failed",
        "wl_2000, 2000 to 3000 ms: served",
    ]
    bars = [kind for kind, title in reader.bars if title]
    assert bars == ["fault", "request good", "request bad", "request good"]
    assert reader.rows["request good"].isdisjoint(reader.rows["request bad"]), "what overlaps has rows of its own"
    assert reader.sources == []
    assert "<script" not in page
    assert "one_receipt: &lt;b&gt;two" in page
    assert '<circle class="hitdot"' in page.partition('class="chart"')[2]


@pytest.mark.slow
def test_a_run_is_seen_and_not_changed() -> None:
    timeline, scenario = Timeline(), SCENARIOS["agent-kill"]
    seen = scenario.run(2, Manner(attend=timeline.attend))
    timeline.close(seen.problem)
    assert seen.digest == scenario.run(2).digest
    assert timeline.lanes == ["controller", "sim-dgx-1", "the world"]
    kinds = {(span.lane, span.track, span.label.partition(" ")[0]) for span in timeline.spans}
    assert ("controller", Track.STATE, "leads") in kinds
    assert ("sim-dgx-1", Track.FAULT, "no") in kinds, "the agent is away"
    assert ("sim-dgx-1", Track.ENGINE, "engine") in kinds
    served = [span for span in timeline.spans if span.track is Track.REQUEST and span.tone is Tone.GOOD]
    assert served
    assert all(0 <= span.begin_ms <= span.end_ms <= seen.virtual_ms for span in timeline.spans)
    assert any("the agent is killed" in mark.label and mark.lane == "sim-dgx-1" for mark in timeline.marks)
