"""A real ``lunanexa up`` with reference engines, each of which can also be called directly.

Both ways reach the same engine process: its port and key are read from ``/proc``, which this user may do.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import attrs

from benchmarks.load import Address

SLOTS: Final = 256
CONTEXT_TOKENS: Final = 4096
START_S: Final = 60.0
STOP_S: Final = 60.0
_BIN: Final = Path(sys.executable).parent
_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")


class HarnessFailed(Exception):
    """LunaNexa did not start, serve or stop as it should."""


@attrs.frozen(kw_only=True)
class Way:
    """One way to a model: where to ask, and what to show and name there."""

    name: str
    address: Address
    key: str = attrs.field(repr=False)
    model: str

    def post(self, target: str, document: dict[str, Any]) -> bytes:
        """A request, ready for the socket."""
        body = json.dumps({"model": self.model, **document}).encode()
        head = (
            f"POST {target} HTTP/1.1\r\nhost: {self.address.host}:{self.address.port}\r\n"
            f"authorization: Bearer {self.key}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


@attrs.frozen(kw_only=True)
class Model:
    """One deployment: the same engine process, asked directly and through LunaNexa."""

    direct: Way
    through: Way
    engine_pid: int


@attrs.frozen(kw_only=True)
class Installation:
    """A running ``lunanexa up``."""

    address: Address
    api_key: str = attrs.field(repr=False)
    operator_token: str = attrs.field(repr=False)
    alias: str
    controller_pid: int
    node_pid: int
    store: Path
    """The controller's journal."""

    def first_model(self) -> Model:
        """What ``lunanexa up`` itself has deployed: a reference engine without pacing."""
        return self._model("default", self.alias)

    def deploy_paced(self, *, ttft_ms: float, itl_ms: float) -> Model:
        """One more reference engine, which sends its tokens at set times."""
        return self.deploy("paced", ttft_ms=ttft_ms, itl_ms=itl_ms, slots=SLOTS)

    def deploy(self, name: str, *, ttft_ms: float, itl_ms: float, slots: int) -> Model:
        """One more reference engine, under the alias ``name``."""
        self._ask(
            "PUT",
            f"/admin/v1/deployments/{name}",
            {
                "alias": name,
                "engine": {
                    "driver": "reference",
                    "served_name": name,
                    "binary": str(_BIN / "lunanexa-engine"),
                    "arguments": ["--ttft-ms", str(ttft_ms), "--itl-ms", str(itl_ms)],
                    "slots": slots,
                },
            },
        )
        return self._model(name, name)

    def queue_of(self, deployment: str) -> tuple[int, int]:
        """How many requests of a deployment wait, and how many run, by the controller's own count."""
        for entry in self._ask("GET", "/admin/v1/status")["deployments"]:
            if entry["deployment"] == deployment:
                return entry["queue"]["waiting"], entry["queue"]["running"]
        raise HarnessFailed(f"there is no deployment {deployment}")

    def gauge(self, name: str) -> float:
        """A value of the controller's own metrics, which has no labels."""
        for line in self._fetch("GET", "/metrics").decode().splitlines():
            found, _, value = line.partition(" ")
            if found == name:
                return float(value)
        raise HarnessFailed(f"there is no {name}")

    def receipts(self, limit: int) -> list[dict[str, Any]]:
        """The newest receipts, newest first."""
        found: list[dict[str, Any]] = self._ask("GET", f"/admin/v1/receipts?limit={limit}")["data"]
        return found

    def _model(self, deployment: str, alias: str) -> Model:
        until_s = time.perf_counter() + START_S
        while time.perf_counter() < until_s:
            pid = self.serving_pid(deployment)
            if pid is not None:
                engine = Way(name="engine", address=_engine_address(pid), key=_engine_key(pid), model=alias)
                through = Way(name="LunaNexa", address=self.address, key=self.api_key, model=alias)
                return Model(direct=engine, through=through, engine_pid=pid)
            time.sleep(0.1)
        raise HarnessFailed(f"the deployment {deployment} did not become ready: {self._ask('GET', '/admin/v1/status')}")

    def serving_pid(self, deployment: str) -> int | None:
        """The process of a deployment's engine that serves now."""
        for entry in self._ask("GET", "/admin/v1/status")["deployments"]:
            if entry["deployment"] == deployment:
                for replica in entry["replicas"]:
                    if replica["routable"] and isinstance(replica["pid"], int):
                        return int(replica["pid"])
        return None

    def _ask(self, method: str, target: str, document: Any = None) -> Any:
        return json.loads(self._fetch(method, target, document))

    def _fetch(self, method: str, target: str, document: Any = None) -> bytes:
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=15)
        with contextlib.closing(connection):
            headers = {"authorization": f"Bearer {self.operator_token}", "content-type": "application/json"}
            connection.request(method, target, None if document is None else json.dumps(document), headers)
            answer = connection.getresponse()
            body = answer.read()
        if not 200 <= answer.status < 300:
            raise HarnessFailed(f"{method} {target}: {answer.status} {body.decode(errors='replace')}")
        return body


@contextlib.contextmanager
def running_installation(directory: Path) -> Iterator[Installation]:
    """Starts ``lunanexa up`` in a fresh data directory, and stops it. Raises :class:`HarnessFailed`."""
    with tempfile.TemporaryDirectory(prefix="lunanexa-bench-", dir=directory) as name:
        folder = Path(name)
        ready_file, log = folder / "ready.json", folder / "up.log"
        command = [
            *(str(_BIN / "lunanexa"), "up", "--engine", "reference"),
            *("--data-dir", str(folder / "data"), "--listen", "127.0.0.1:0"),
            *("--slots", str(SLOTS), "--context-tokens", str(CONTEXT_TOKENS)),
            *("--ready-file", str(ready_file)),
        ]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("LUNANEXA_")}
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, cwd=folder)
        try:
            yield _wait_ready(process, ready_file, log, folder / "data" / "controller" / "store.sqlite3")
        finally:
            _stop(process)


def cpu_s(pid: int) -> float:
    """Processor seconds of a process so far, all its threads, user and system; in steps of 10 ms."""
    # The name in parentheses may itself hold blanks and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND


def _wait_ready(process: subprocess.Popen[bytes], ready_file: Path, log: Path, store: Path) -> Installation:
    until_s = time.perf_counter() + START_S
    while time.perf_counter() < until_s and process.poll() is None:
        if ready_file.exists():
            facts = json.loads(ready_file.read_bytes())
            host, _, port = facts["base_url"].removeprefix("http://").removesuffix("/v1").rpartition(":")
            return Installation(
                address=Address(host, int(port)),
                api_key=facts["api_key"],
                operator_token=facts["operator_token"],
                alias=facts["model"],
                controller_pid=facts["pids"]["controller"],
                node_pid=facts["pids"]["node"],
                store=store,
            )
        time.sleep(0.05)
    raise HarnessFailed(f"lunanexa up did not become ready:\n{log.read_text(errors='replace')[-2000:]}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """The regular stop, so that engines end too; the hard one only after that."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _engine_address(pid: int) -> Address:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    return Address("127.0.0.1", int(arguments[arguments.index("--port") + 1]))


def _engine_key(pid: int) -> str:
    prefix = b"LUNANEXA_ENGINE_API_KEY="
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next((entry.removeprefix(prefix).decode() for entry in variables if entry.startswith(prefix)), "")
