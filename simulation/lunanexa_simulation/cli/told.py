"""What people read of runs: how it ended, and of a failure all that is needed to see it again."""

from collections.abc import Iterable, Mapping

from lunanexa_simulation.cli.tools import SWARM
from lunanexa_simulation.documents import RunDocument, SwarmDocument


def run_lines(document: RunDocument, *, only: Iterable[int] | None = None) -> list[str]:
    """One run."""
    lines = [
        f"{document.scenario} seed {document.seed}: {document.verdict}, {document.virtual_ms / 1_000:.3f} virtual "
        f"seconds, {len(document.checks)} checks, {len(document.invariants)} invariants at "
        f"{document.quiescent_instants} instants",
        f"digest {document.digest}",
    ]
    if document.deterministic:
        lines.append("deterministic: the same digest in two processes")
    lines += happened_lines(document.happened)
    return lines + (failure_lines(document, only=only) if document.exit_code else [])


def failure_lines(document: RunDocument, *, only: Iterable[int] | None = None) -> list[str]:
    """What broke first, what came before it, and how to see it again."""
    chosen = "" if only is None else f" --only {','.join(map(str, sorted(only)))}"
    seed = f"--seed {document.seed}{minutes_words(document.faults_ms)}"
    again = f"lunanexa-sim run {document.scenario} {seed}{chosen}"
    lines = [
        f"seed {document.seed}, commit {document.commit or 'unknown'}",
        f"broken: {document.problem}",
        *(document.detail or "").splitlines(),
        "the end of the trace:",
        *document.trace_tail,
        f"again: {again}",
    ]
    if document.scenario == SWARM and only is None and document.mishaps:
        lines.append(f"with fewer mishaps: lunanexa-sim shrink {seed}")
    return lines


def minutes_words(faults_ms: int | None) -> str:
    """What is said on the command line, to have it so long again."""
    # Ten digits tell each millisecond of an hour.
    return "" if faults_ms is None else f" --minutes {faults_ms / 60_000:.10g}"


def swarm_lines(document: SwarmDocument) -> list[str]:
    """Many seeds; the failures were told when they came."""
    ended = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in document.verdicts.items()) or "none"
    asked = sum(one.times_asked for one in document.invariants)
    return [
        f"{document.scenario}{minutes_words(document.faults_ms)}, {document.seeds_run} of {document.seeds} seeds from "
        f"{document.first_seed}: {ended}",
        f"{document.virtual_ms / 60_000:.1f} virtual minutes, {document.quiescent_instants} instants, "
        f"invariants asked {asked} times",
        f"digest {document.digest}",
        *happened_lines(document.happened),
        *(f"broken: seed {one.seed}: {one.problem}" for one in document.failures),
    ]


def happened_lines(happened: Mapping[str, int]) -> list[str]:
    """How often what happened, most often first, so that one sees that something was provoked."""
    order = sorted(happened.items(), key=lambda item: (item[0].partition(" ")[0], -item[1], item[0]))
    return [f"{count:>8}  {name}" for name, count in order]
