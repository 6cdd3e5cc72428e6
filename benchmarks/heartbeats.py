"""What a fleet that only reports costs its controller: each node has a report every two seconds and a long poll.

A real ``lunanexa-controller`` on one core, over a store in which the real codec has enrolled the nodes and placed a
replica on each; the nodes are a process on another core (:mod:`benchmarks.node_fleet`), with certificates that the
controller's authority issued. Fleets of three sizes are measured in one run, so that what one node more costs is told
by their ratio.
"""

import contextlib
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import attrs
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.harness import HarnessFailed, cpu_s
from benchmarks.journal_start import start_once
from benchmarks.load import Address
from benchmarks.node_fleet import EVERY_S, VERSION, NodeFleet, Place
from benchmarks.report import Options, Report
from lunanexa_adapters.crypto.credentials import TlsCredentials
from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_adapters.system.clock import SystemClock
from lunanexa_apps.controller.replay import rebuild
from lunanexa_apps.controller.rows import to_row
from lunanexa_core.deployment import Assignment, Deployment, DeploymentSpec, EngineSpec
from lunanexa_core.events import AssignmentPlaced, DeploymentApplied, Event, NodeEnrolled
from lunanexa_core.identity.certificate import NodeCertificate, terms_at
from lunanexa_core.identity.names import node_identity
from lunanexa_core.identity.trust import TrustSet
from lunanexa_core.ids import Alias, AssignmentId, ClusterId, DeploymentId, HolderId, NodeId
from lunanexa_core.journal import Row
from lunanexa_ports.journal import Appended

SIZES: Final = (100, 500, 1_000)
MEASURED_S: Final = 20.0
_SETTLE_S: Final = 3 * EVERY_S
_START_S: Final = 30.0
_DEPLOYMENT: Final = DeploymentId("fleet")


@attrs.frozen(kw_only=True)
class Cost:
    """Of one fleet. Shares are of one core."""

    reports_per_s: float
    cpu_share: float
    fleet_cpu_share: float
    p50_ms: float
    p99_ms: float
    rows_a_minute: float
    faults: tuple[str, ...]


def measure(options: Options) -> Report:
    """Each size once, for ``seconds`` or :data:`MEASURED_S`, whichever is longer."""
    costs = {size: _measure(options, size) for size in SIZES}
    figures: dict[str, float] = {}
    rows: list[tuple[str, ...]] = []
    for size, cost in costs.items():
        us = cost.cpu_share / cost.reports_per_s * 1e6
        rows.append(
            (
                f"{size:,} nodes",
                f"{cost.reports_per_s:.0f}",
                f"{cost.cpu_share:.0%}",
                f"{us:.0f}",
                f"{cost.p50_ms:.2f}",
                f"{cost.p99_ms:.2f}",
                f"{cost.rows_a_minute:.0f}",
                f"{cost.fleet_cpu_share:.0%}",
            )
        )
        figures |= {f"{size}: CPU share": cost.cpu_share, f"{size}: us a report": us}
        figures |= {f"{size}: p50 ms": cost.p50_ms, f"{size}: p99 ms": cost.p99_ms}
        figures |= {f"{size}: rows a minute": cost.rows_a_minute}
    least, most = min(SIZES), max(SIZES)
    each = figures[f"{most}: us a report"] / figures[f"{least}: us a report"]
    return Report(
        title="heartbeats: a report every 2 s and a long poll of each node, the controller on one core",
        columns=("fleet", "reports/s", "CPU of a core", "us a report", "p50 ms", "p99 ms", "rows/min", "fleet's CPU"),
        rows=tuple(rows),
        figures=figures,
        notes=(f"With {most:,} nodes a report costs x{each:.2f} of what it costs with {least:,}.",),
        faults=tuple(f"{size:,} nodes: {fault}" for size, cost in costs.items() for fault in cost.faults),
    )


def _measure(options: Options, size: int) -> Cost:
    seconds = max(options.seconds, MEASURED_S)
    ours, theirs = _cores()
    with tempfile.TemporaryDirectory(prefix="lunanexa-heartbeats-", dir=options.directory) as made:
        folder = Path(made)
        start_once(folder)  # It makes secrets, store and cluster.
        places = trio.run(_fill, folder / "controller", size)
        with _controller(folder, theirs) as (process, address):
            before_cores = os.sched_getaffinity(0)
            os.sched_setaffinity(0, ours)
            fleet = NodeFleet(address, places)
            try:
                fleet.run(fleet.ramp_s + _SETTLE_S)
                store = folder / "controller" / "store.sqlite3"
                began, rows = _spent(process.pid), _rows(store)
                heard = fleet.run(seconds)
                took_s, cost_s, own_s = (
                    after - before for after, before in zip(_spent(process.pid), began, strict=True)
                )
                rows = _rows(store) - rows
            finally:
                fleet.close()
                os.sched_setaffinity(0, before_cores)
    answers = sorted(heard.answers_s)
    faults = [f"{count} x {refusal}" for refusal, count in heard.refused.items()]
    if heard.left_out:
        faults.append(f"{heard.left_out} reports were due before the last one was answered")
    return Cost(
        reports_per_s=len(answers) / took_s,
        cpu_share=cost_s / took_s,
        fleet_cpu_share=own_s / took_s,
        p50_ms=answers[len(answers) // 2] * 1_000,
        p99_ms=answers[len(answers) * 99 // 100] * 1_000,
        rows_a_minute=rows / took_s * 60,
        faults=tuple(faults),
    )


def _spent(pid: int) -> tuple[float, float, float]:
    """Time that has passed, of the controller's processor and of ours."""
    return time.perf_counter(), cpu_s(pid), time.process_time()


def _cores() -> tuple[set[int], set[int]]:
    """Ours, and the controller's one."""
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        raise HarnessFailed("two cores are needed: one for the controller, one for the fleet")
    return set(found[1:]), {found[0]}


class _Registry:
    """Makes nodes as an enrolment does: each has its own keys, and a certificate of the cluster's authority."""

    def __init__(self, secrets: Path, cluster: ClusterId, trust: TrustSet) -> None:
        self._keys = LocalFleetKeys(secrets, SystemClock())
        self._cluster = cluster
        self._trust = trust
        self._wall_ms = SystemClock().now().wall_ms

    def enrol(self, number: int) -> tuple[Place, NodeEnrolled]:
        node, issuer = NodeId(f"node-{number:04}"), self._trust.issuing
        credentials, signer = TlsCredentials(None), Ed25519Signer(Ed25519PrivateKey.generate())
        credentials.trust([issuer.certificate])
        terms = terms_at(node_identity(self._cluster, node).uri, f"f{number:04x}", self._wall_ms)
        chain = self._keys.issue(issuer.fingerprint, credentials.request(), terms)
        if chain is None:
            raise HarnessFailed("the authority issues nothing")
        credentials.accept(chain)
        place = Place(
            assignment=Assignment(
                assignment=AssignmentId(f"asg_fleet_{number:04}"), deployment=_DEPLOYMENT, node=node, generation=1
            ),
            signer=signer,
            credentials=credentials,
            trust_version=self._trust.version,
        )
        event = NodeEnrolled(
            node=node,
            public_key=signer.public_key,
            agent_version=VERSION,
            token=f"token_{number:04}",
            certificate=NodeCertificate(
                serial=terms.serial, issuer=issuer.fingerprint, not_after_wall_ms=terms.not_after_s * 1_000
            ),
        )
        return place, event


def _placements(places: list[Place]) -> Iterator[Event]:
    spec = DeploymentSpec(
        deployment=_DEPLOYMENT,
        alias=Alias("fleet"),
        engine=EngineSpec(driver="reference", served_name="fleet", binary="/usr/bin/true"),
        replicas=len(places),
    )
    yield DeploymentApplied(Deployment(spec=spec, generation=1))
    for place in places:
        yield AssignmentPlaced(place.assignment)


async def _fill(folder: Path, size: int) -> list[Place]:
    """Nobody carries a token to a thousand machines: nodes are put into the store, as its leader would."""
    async with open_sqlite_journal(folder / "store.sqlite3") as journal:
        known = await rebuild(journal)
        if known.state.cluster is None or known.state.trust is None:
            raise HarnessFailed("the controller left a store without a cluster")
        registry = _Registry(folder / "secrets", known.state.cluster, known.state.trust)
        enrolled = [registry.enrol(number) for number in range(size)]
        places = [place for place, _ in enrolled]
        holder = HolderId("benchmark")
        claimed = await journal.claim(holder, "", seen=await journal.look())
        if claimed is None:
            raise HarnessFailed("somebody leads the store")
        head, rows = known.head, list[Row]()
        for event in (*(event for _, event in enrolled), *_placements(places)):
            rows.append(to_row(head, event, epoch=claimed.epoch, wall_ms=known.wall_ms, actor="benchmark"))
            head = head.after(rows[-1])
        outcome = await journal.append(claimed.epoch, attrs.evolve(known.head, epoch=claimed.epoch), rows)
        if outcome is not Appended.DURABLE:
            raise HarnessFailed(f"the store can't be prepared: {outcome}")
        await journal.release(holder, claimed.epoch)
    return places


@contextlib.contextmanager
def _controller(folder: Path, cores: set[int]) -> Iterator[tuple[subprocess.Popen[bytes], Address]]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    log = folder / "controller.log"
    command = [sys.executable, "-m", "lunanexa_apps.controller.main", "--data-dir", str(folder)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--listen", "127.0.0.1:0", "--node-listen", "127.0.0.1:0", "--log-format", "json"],
            stdout=output,
            stderr=output,
        )
    try:
        os.sched_setaffinity(process.pid, cores)
        yield process, _address(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _address(process: subprocess.Popen[bytes], log: Path) -> Address:
    until_s = time.perf_counter() + _START_S
    while time.perf_counter() < until_s and process.poll() is None:
        _, found, rest = log.read_text(errors="replace").partition('"node_url": "https://')
        if found:
            host, _, port = rest.partition('"')[0].rpartition(":")
            return Address(host, int(port))
        time.sleep(0.01)
    raise HarnessFailed(f"the controller did not serve: {log.read_text(errors='replace')[-1_000:]}")


def _rows(store: Path) -> int:
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        found: int = connection.execute("SELECT max(sequence) FROM row").fetchone()[0]
    return found
