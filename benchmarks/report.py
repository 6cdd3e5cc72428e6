"""What a benchmark says: one table for people, the same figures as numbers for programs, and the machine."""

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Options:
    """What a benchmark is told. ``seconds``: length of one measurement; ``rounds``: repetitions of each;
    ``requests``: of the soak."""

    seconds: float
    rounds: int
    requests: int
    directory: Path
    """Where data directories are made: its disk is a part of what is measured."""


@attrs.frozen(kw_only=True)
class Report:
    """``faults``: what was wrong; a benchmark that checks has failed when there are any."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    figures: Mapping[str, float]
    notes: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The first column to the left, numbers to the right."""
    lines = [list(columns), *map(list, rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    texts = [
        "  ".join(
            cell.ljust(width) if index == 0 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([texts[0], "-" * len(texts[0]), *texts[1:]])


def show(report: Report) -> str:
    """The report for people."""
    parts = [report.title]
    if report.rows:
        parts += ["", table(report.columns, report.rows)]
    parts += [f"* {note}" for note in report.notes]
    parts += [f"WRONG: {fault}" for fault in report.faults]
    return "\n".join(parts)


def machine(directory: Path) -> dict[str, Any]:
    """What the figures belong to, and how busy the machine was with other things."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.processor(),
    )
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "kernel": platform.release(),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file_system": _file_system(directory),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def show_machine(found: Mapping[str, Any]) -> str:
    load = ", ".join(str(number) for number in found["load_average"])
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['memory_gib']} GiB; Linux {found['kernel']}; "
        f"{found['python']}; data on {found['file_system']}; load average {load}"
    )


def _file_system(directory: Path) -> str:
    """The type of the file system that holds ``directory``: of the mount with the longest matching path."""
    mounts = [line.split() for line in _lines("/proc/mounts")]
    holding = [(Path(mount[1]), mount[2]) for mount in mounts if directory.is_relative_to(mount[1])]
    return max(holding, key=lambda mount: len(mount[0].parts))[1] if holding else "unknown"


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
