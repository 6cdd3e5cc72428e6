"""The page of one run: a timeline that a person can read. It is one file, for light and dark, with no script."""

from collections.abc import Iterator, Sequence
from html import escape
from typing import Final

import attrs

from lunanexa_simulation.documents import HELD, RunDocument
from lunanexa_simulation.timeline import Mark, Span, Timeline, Tone, Track

ROW: Final = 11
"""The height of a row, in pixels."""
GAP: Final = 3
MARKS: Final = 14
PAD: Final = 8
NARROW: Final = 1_000
WIDE: Final = 12_000
PER_S: Final = 24
STEPS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600)
MISHAPS_SHOWN: Final = 200
_TRACKS: Final = (Track.FAULT, Track.STATE, Track.ENGINE, Track.REQUEST)
_TONES: Final = {Tone.GOOD: "served", Tone.LEFT: "its caller left", Tone.BAD: "failed", Tone.PLAIN: "passed on"}
_LEGEND: Final = (
    ("fault", "something is broken"),
    ("state", "controller or agent runs"),
    ("engine", "an engine process"),
    ("request good", "a request, served"),
    ("request left", "its caller left"),
    ("request bad", "failed"),
    ("request plain", "waits, or was passed on"),
)
_LEGEND_MARKS: Final = (
    (8, '<path class="mark" d="M4 0V10"/>', "something happened"),
    (10, '<circle class="hitdot" cx="5" cy="5" r="5"/>', "a broken promise"),
)
STYLE: Final = """
:root{color-scheme:light dark;--bg:#fcfcfb;--fg:#1d1f24;--dim:#667085;--line:#e4e6ea;--band:#f4f5f3;
--fault:#f3b0a4;--state:#cfd8e6;--engine:#9db8dd;--good:#3f9f6b;--left:#b9a04a;--bad:#c8402f;--plain:#9aa3b2;--mark:#5b6472}
@media (prefers-color-scheme:dark){:root{--bg:#15171b;--fg:#e6e8ec;--dim:#98a1b0;--line:#2b2f37;--band:#1b1e24;
--fault:#7d3a33;--state:#343c4b;--engine:#44608c;--good:#4bb57c;--left:#c6ad55;--bad:#ee6352;--plain:#6d7686;--mark:#aab2bf}}
*{box-sizing:border-box}body{margin:0;background:var(--bg);color:var(--fg);font:14px/1.45 system-ui,sans-serif}
header,section{padding:16px 24px}h1{font-size:20px;margin:0 0 4px}h2{font-size:15px;margin:0 0 8px}p{margin:4px 0}
.dim{color:var(--dim)}code{font:12px/1.5 ui-monospace,monospace}pre{font:12px/1.5 ui-monospace,monospace;overflow:auto;
background:var(--band);padding:12px;border-radius:6px}.verdict{font-weight:600}.verdict.held{color:var(--good)}
.verdict.broken{color:var(--bad)}.chart{display:flex;border-block:1px solid var(--line)}
.names{flex:none;width:132px;border-right:1px solid var(--line)}.names div{padding:6px 10px 0 24px;font-weight:600;
border-top:1px solid var(--line);overflow:hidden;text-overflow:ellipsis;white-space:nowrap}.names .axis{border:0}
.scroll{overflow-x:auto;flex:1}svg{display:block}.lane{fill:var(--band)}.grid{stroke:var(--line)}
.tick{fill:var(--dim);font:11px ui-monospace,monospace}rect.fault{fill:var(--fault)}rect.state{fill:var(--state)}
rect.engine{fill:var(--engine)}rect.good{fill:var(--good)}rect.left{fill:var(--left)}rect.bad{fill:var(--bad)}
rect.plain{fill:var(--plain)}.label{fill:var(--fg);font:9px system-ui,sans-serif;pointer-events:none}
.mark{stroke:var(--mark);stroke-width:2}.hit{stroke:var(--bad);stroke-width:2}.hitdot{fill:var(--bad)}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px}.legend svg{display:inline-block;vertical-align:-1px;margin-right:6px}
table{border-collapse:collapse}td,th{padding:2px 18px 2px 0;text-align:left;vertical-align:top}th{color:var(--dim);
font-weight:500}td.n{text-align:right;font-variant-numeric:tabular-nums}
.columns{display:flex;flex-wrap:wrap;gap:8px 56px}
"""


@attrs.frozen(kw_only=True)
class _Lane:
    name: str
    top: int
    height: int
    rows: Sequence[tuple[int, Span]]
    """Each span with the row that it has for itself."""
    marks: Sequence[Mark]


def timeline_page(timeline: Timeline, document: RunDocument) -> str:
    """The whole file."""
    title = f"{document.scenario}, seed {document.seed}"
    parts = [
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        f"<style>{STYLE}</style>",
        *_head(title, document),
        *_chart(timeline, max(document.virtual_ms, 1)),
        *_tables(document),
        "</html>",
    ]
    return "\n".join(parts) + "\n"


def _head(title: str, document: RunDocument) -> Iterator[str]:
    verdict = document.verdict.replace("_", " ")
    yield f"<header><h1>{escape(title)}</h1>"
    yield f"<p>{_verdict(verdict)} · {document.virtual_ms / 1_000:.1f} virtual seconds · {len(document.checks)} checks"
    yield f" · {len(document.invariants)} invariants at {document.quiescent_instants} instants</p>"
    if document.problem:
        yield f"<p><strong>{escape(document.problem)}</strong></p>"
    yield f'<p class="dim">commit <code>{document.commit or "unknown"}</code>'
    yield f" · digest <code>{document.digest}</code></p>"
    yield '<p class="dim">Protocol, placement and recovery; nothing here tells of accelerator speed. '
    yield "Point at a bar for what it is.</p></header>"
    yield '<section class="legend">'
    for kind, told in _LEGEND:
        bar = f'<rect class="{kind}" width="18" height="10" rx="2"/>'
        yield f'<span><svg width="18" height="10">{bar}</svg>{told}</span>'
    for width, shape, told in _LEGEND_MARKS:
        yield f'<span><svg width="{width}" height="10">{shape}</svg>{told}</span>'
    yield "</section>"


def _chart(timeline: Timeline, until_ms: int) -> Iterator[str]:
    width = max(NARROW, min(WIDE, until_ms * PER_S // 1_000))
    lanes = list(_lanes(timeline))
    height = lanes[-1].top + lanes[-1].height if lanes else 0
    yield '<div class="chart"><div class="names"><div class="axis" style="height:24px"></div>'
    for lane in lanes:
        yield f'<div style="height:{lane.height}px">{escape(lane.name)}</div>'
    yield f'</div><div class="scroll"><svg width="{width + PAD}" height="{height + 24}">'
    step_s = next((step for step in STEPS_S if step * 1_000 * width / until_ms >= 60), STEPS_S[-1])
    for number, lane in enumerate(lanes):
        if number % 2 == 0:
            yield f'<rect class="lane" y="{lane.top + 24}" width="{width + PAD}" height="{lane.height}"/>'
    for at_s in range(0, until_ms // 1_000 + 1, step_s):
        x = _x(at_s * 1_000, width, until_ms)
        yield f'<path class="grid" d="M{x} 20V{height + 24}"/><text class="tick" x="{x + 2}" y="14">{at_s} s</text>'
    for lane in lanes:
        yield from _drawn(lane, width, until_ms)
    yield "</svg></div></div>"


def _lanes(timeline: Timeline) -> Iterator[_Lane]:
    top = 0
    for name in timeline.lanes:
        rows, used = [], 0
        spans = sorted((span for span in timeline.spans if span.lane == name), key=lambda span: span.begin_ms)
        for track in _TRACKS:
            ends: list[int] = []
            for span in spans:
                if span.track is track:
                    row = next((row for row, end_ms in enumerate(ends) if end_ms <= span.begin_ms), len(ends))
                    ends[row : row + 1] = [span.end_ms]
                    rows.append((used + row, span))
            used += len(ends)
        height = MARKS + max(used, 1) * (ROW + GAP) + 2 * PAD
        marks = [mark for mark in timeline.marks if mark.lane == name]
        yield _Lane(name=name, top=top, height=height, rows=rows, marks=marks)
        top += height


def _drawn(lane: _Lane, width: int, until_ms: int) -> Iterator[str]:
    top = lane.top + 24 + PAD
    for row, span in lane.rows:
        x, y = _x(span.begin_ms, width, until_ms), top + MARKS + row * (ROW + GAP)
        wide = max(1.5, _x(span.end_ms, width, until_ms) - x)
        kind = f"request {span.tone.value}" if span.track is Track.REQUEST else span.track.value
        told = f"{span.label}, {span.begin_ms} to {span.end_ms} ms"
        if span.track is Track.REQUEST:
            told += f": {_TONES[span.tone]}"
        yield f'<rect class="{kind}" x="{x}" y="{y}" width="{wide:.1f}" height="{ROW}" rx="2">'
        yield f"<title>{escape(told)}</title></rect>"
        if span.track is not Track.REQUEST and wide > len(span.label) * 4.6 + 6:
            yield f'<text class="label" x="{x + 4}" y="{y + 8.5}">{escape(span.label)}</text>'
    for mark in lane.marks:
        x = _x(mark.at_ms, width, until_ms)
        told = f"<title>{mark.at_ms} ms: {escape(mark.label)}</title>"
        if mark.broken:
            yield f'<path class="hit" d="M{x} {lane.top + 24}V{lane.top + 24 + lane.height}">{told}</path>'
            yield f'<circle class="hitdot" cx="{x}" cy="{top + 4}" r="5">{told}</circle>'
        else:
            yield f'<path class="mark" d="M{x} {top}v9">{told}</path>'


def _x(at_ms: int, width: int, until_ms: int) -> float:
    return round(at_ms * width / until_ms, 1)


def _tables(document: RunDocument) -> Iterator[str]:
    yield '<section class="columns">'
    if document.happened:
        yield "<div><h2>What happened</h2><table>"
        for name, count in document.happened.items():
            yield f'<tr><td class="n">{count}</td><td>{escape(name)}</td></tr>'
        yield "</table></div>"
    yield "<div><h2>Invariants</h2><table><tr><th>asked</th><th></th><th></th></tr>"
    for one in document.invariants:
        yield f'<tr><td class="n">{one.times_asked}</td><td>{escape(one.name)}</td>'
        yield f"<td>{_verdict(one.verdict)}</td></tr>"
    yield "</table></div>"
    if document.mishaps:
        yield "<div><h2>Mishaps that the seed has in store</h2><table>"
        for mishap in document.mishaps[:MISHAPS_SHOWN]:
            yield f'<tr><td class="n">{mishap.number}</td><td>{escape(mishap.told)}</td></tr>'
        yield "</table></div>"
    yield "</section>"
    if document.trace_tail:
        yield "<section><h2>The end of the trace</h2><pre>"
        yield escape("\n".join(document.trace_tail))
        yield "</pre></section>"


def _verdict(word: str) -> str:
    return f'<span class="verdict {"held" if word == HELD else "broken"}">{word}</span>'
