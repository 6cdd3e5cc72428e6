"""How long a controller takes to start on a long journal, and what memory it takes, with a snapshot and without.

Real controllers on stores that the real codec wrote: admissions and settlements, and now and then a row of the journal.
Measured is from the start of the process to the line of the log that says that it serves, and the most memory that was
resident until then. A store of a million records takes minutes to make and is kept for the next run.
"""

import contextlib
import hashlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Final

import attrs
import trio

from benchmarks.harness import HarnessFailed, cpu_s
from benchmarks.report import Options, Report
from lunanexa_adapters.files.snapshots import LocalSnapshots
from lunanexa_adapters.sqlite.journal import SqliteJournal, open_sqlite_journal
from lunanexa_apps.controller.kept_snapshots import keep_snapshot
from lunanexa_apps.controller.replay import Replay, rebuild
from lunanexa_apps.controller.rows import place_of, to_row
from lunanexa_apps.controller.snapshot import Snapshot
from lunanexa_core.admission.settle import settled_as
from lunanexa_core.events import Event, Liveness, LivenessChanged, WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import Alias, DeploymentId, HolderId, RequestId, SessionId, StartId, WorkloadId
from lunanexa_core.journal import Row
from lunanexa_core.kernel.apply import APPLY_VERSION, apply
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.workload import Attempt, Dialect, Settlement, Usage, WorkloadRequest
from lunanexa_ports.journal import Appended

RECORDS: Final = (10_000, 1_000_000)
BEHIND: Final = 10_000
"""Rows after the snapshot: of the larger stores as many as of one that was snapshotted a while ago."""
TARGET_S: Final = 3.0
"""Of one core: that long a start with a snapshot takes on a machine that does nothing else."""
START_S: Final = 600.0
_BATCH: Final = 2_000
_MS_A_ROW: Final = 20
_JOURNAL_EVERY: Final = 1_000
_DEPLOYMENT: Final = DeploymentId("default")
_FORM: Final = f"1-{APPLY_VERSION}"


@attrs.frozen(kw_only=True)
class Start:
    """One start of a controller: until it serves, its processor's share of that, and the most memory until then."""

    seconds: float
    cpu_seconds: float
    peak_mib: float


def measure(options: Options) -> Report:
    """Each store in turn, with a snapshot (the fastest of ``rounds`` starts: what else the machine does only adds to
    one) and once without."""
    rows: list[tuple[str, ...]] = []
    figures: dict[str, float] = {}
    found: dict[tuple[int, bool], Start] = {}
    for records in RECORDS:
        folder = made_store(options.directory, records)
        snapshots = folder / "controller" / "snapshots"
        found[records, True] = min((start_once(folder) for _ in range(options.rounds)), key=lambda start: start.seconds)
        with _without(snapshots):
            found[records, False] = start_once(folder)
    least, most = RECORDS
    for (records, snapshot), start in found.items():
        name = f"{records:,} records, {'a snapshot' if snapshot else 'no snapshot'}"
        rows.append((name, f"{start.seconds:.2f}", f"{start.cpu_seconds:.2f}", f"{start.peak_mib:.1f}"))
        figures |= {f"{name}: s": start.seconds, f"{name}: peak MiB": start.peak_mib}
    with_most, without_most, with_least = found[most, True], found[most, False], found[least, True]
    took_s, faster = with_most.cpu_seconds, without_most.cpu_seconds / with_most.cpu_seconds
    memory, longer = with_most.peak_mib / with_least.peak_mib, took_s / with_least.cpu_seconds
    faults = () if took_s < TARGET_S else (f"a start on {most:,} records took {took_s:.2f} s of a core",)
    return Report(
        title="journal_start: from the start of the process until it serves",
        columns=("store", "s", "processor s", "peak MiB"),
        rows=tuple(rows),
        figures=figures,
        notes=(
            f"A snapshot makes a start on {most:,} records x{faster:.0f} as fast, by the processor's time.",
            f"{most // least} times the records take x{memory:.2f} the memory and x{longer:.2f} the time,"
            f" with a snapshot {BEHIND:,} rows back.",
        ),
        faults=faults,
    )


def start_once(folder: Path) -> Start:
    """Starts a controller on ``folder`` and stops it when it serves."""
    log = folder / "controller.log"
    began = time.perf_counter()
    command = [sys.executable, "-m", "lunanexa_apps.controller.main", "--data-dir", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--log-format", "json"], stdout=output, stderr=output
        )
    try:
        while '"serving"' not in log.read_text(errors="replace"):
            if process.poll() is not None or time.perf_counter() - began > START_S:
                raise HarnessFailed(f"the controller did not serve: {log.read_text(errors='replace')[-1_000:]}")
            time.sleep(0.01)
        seconds = time.perf_counter() - began
        return Start(seconds=seconds, cpu_seconds=cpu_s(process.pid), peak_mib=_peak_mib(process.pid))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def made_store(directory: Path, records: int) -> Path:
    """The data directory of a controller with so many records; one that was made before is used again."""
    folder = directory / f"lunanexa-journal-start-{_FORM}-{records}"
    done = folder / "done"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        start_once(folder)
        print(f"making {records:,} records in {folder}", file=sys.stderr, flush=True)
        trio.run(_fill, folder / "controller", records)
        done.touch()
    return folder


async def _fill(folder: Path, records: int) -> None:
    async with open_sqlite_journal(folder / "store.sqlite3") as journal:
        replay = await rebuild(journal)
        holder = HolderId("benchmark")
        claimed = await journal.claim(holder, "", seen=await journal.look())
        assert claimed is not None, "somebody leads"
        events = _events(next(key for key in replay.state.keys.values() if Role.INFERENCE in key.roles), replay)
        kept = False
        while replay.head.sequence < records:
            await _append(journal, replay, claimed.epoch, events, min(_BATCH, records - replay.head.sequence))
            if not kept and replay.head.sequence >= records - BEHIND:
                snapshot = Snapshot(head=replay.head, wall_ms=replay.wall_ms, state=replay.state)
                keep_snapshot(LocalSnapshots(folder / "snapshots"), snapshot)
                kept = True
        await journal.release(holder, claimed.epoch)


async def _append(journal: SqliteJournal, replay: Replay, epoch: int, events: Iterator[Event], count: int) -> None:
    before, batch = replay.head, list[Row]()
    for event in islice(events, count):
        wall_ms = replay.wall_ms + _MS_A_ROW
        row = to_row(replay.head, event, epoch=epoch, wall_ms=wall_ms, actor="gateway")
        apply(replay.state, event, epoch=epoch, wall_ms=wall_ms, place=place_of(row))
        replay.head, replay.wall_ms = replay.head.after(row), wall_ms
        batch.append(row)
    outcome = await journal.append(epoch, attrs.evolve(before, epoch=epoch), batch)
    assert outcome is Appended.DURABLE, outcome


def _events(key: ApiKey, replay: Replay) -> Iterator[Event]:
    """Requests one after another, each settled at once, and a node that comes and goes."""
    node, number = next(iter(replay.state.nodes)), 0
    while True:
        number += 1
        admission = _admission(key, number)
        yield admission
        yield _settlement(admission)
        if number % (_JOURNAL_EVERY // 2) == 0:
            yield LivenessChanged(node, Liveness.READY if number % _JOURNAL_EVERY else Liveness.SUSPECT)


def _admission(key: ApiKey, number: int) -> WorkloadAdmitted:
    request = WorkloadRequest(
        workload=WorkloadId(f"wl_01m8mnfcq5{number:016d}"),
        request=RequestId(f"req_01m8mnfcq5{number:016d}"),
        session=SessionId("ses_01m8mnfcq52p4gc0ctktb8mpym"),
        key_digest=key.digest,
        alias=Alias("default"),
        dialect=Dialect.CHAT,
        stream=number % 2 == 0,
        body_digest=f"sha256:{hashlib.sha256(b'%d' % number).hexdigest()}",
        body_bytes=300 + number % 700,
        reserved_tokens=1_024,
        deadline_ms=600_000,
    )
    return WorkloadAdmitted(request=request, key=key.key, tenant=key.tenant, deployment=_DEPLOYMENT)


def _settlement(admission: WorkloadAdmitted) -> WorkloadSettled:
    settlement = Settlement(
        workload=admission.request.workload,
        outcome=None,
        usage=Usage(input_tokens=80, output_tokens=120),
        queue_ms=1,
        first_output_ms=40,
        total_ms=900,
        attempts=(Attempt(start=StartId("st_01m8mnfcq52p4gc0ctktb8mpym"), status=200),),
    )
    return settled_as(admission, settlement)


@contextlib.contextmanager
def _without(snapshots: Path) -> Iterator[None]:
    aside = snapshots.with_name("aside")
    snapshots.rename(aside)
    try:
        yield
    finally:
        shutil.rmtree(snapshots, ignore_errors=True)
        aside.rename(snapshots)


def _peak_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1_024
    raise HarnessFailed(f"process {pid} is gone")
