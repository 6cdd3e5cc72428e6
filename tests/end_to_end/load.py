"""Clients that go on asking while processes die, and what an installation's books say of them afterwards."""

from collections import Counter
from pathlib import Path

import attrs
import httpx2
import trio

from lunanexa_adapters.sqlite.journal import open_sqlite_journal
from lunanexa_apps.controller.replay import Replay
from lunanexa_apps.controller.rows import from_row
from lunanexa_core.events import WorkloadAdmitted, WorkloadSettled
from lunanexa_core.ids import WorkloadId
from lunanexa_core.workload import Receipt
from lunanexa_ports.journal import JournalReader
from lunanexa_simulation.real.proc import command_line
from tests.end_to_end.installation import LIMIT_S, QUESTION, Ready

TOKENS = 20
AGAIN_S = 0.05


@attrs.frozen(kw_only=True)
class Visit:
    """What a client saw of one request that got a head. ``output``: an engine had begun to answer."""

    workload: WorkloadId
    output: bool
    whole: bool


@attrs.define(eq=False)
class Load:
    """Streams, one after another from each client. ``ready`` is changed by who restarts the installation."""

    ready: Ready
    over: trio.Event = attrs.Factory(trio.Event)
    visits: list[Visit] = attrs.Factory(list)
    streaming: int = 0

    async def visit(self) -> None:
        """One client, until :attr:`over`."""
        async with httpx2.AsyncClient(timeout=LIMIT_S) as client:
            while not self.over.is_set():
                with trio.move_on_after(LIMIT_S) as limit:
                    await self._ask(client)
                assert not limit.cancelled_caught, "a stream neither went on nor was cut"
                await trio.sleep(AGAIN_S)

    async def until_streaming(self) -> None:
        """Returns while at least one client is within an answer."""
        with trio.fail_after(LIMIT_S):
            while not self.streaming:
                await trio.sleep(0.01)

    async def _ask(self, client: httpx2.AsyncClient) -> None:
        ready = self.ready
        body = {"model": ready.model, "messages": [QUESTION], "max_tokens": TOKENS, "ignore_eos": True, "stream": True}
        try:
            async with client.stream(
                "POST",
                f"{ready.base_url}/chat/completions",
                headers={"authorization": f"Bearer {ready.api_key}"},
                json=body,
            ) as answer:
                assert answer.status_code in (200, 429, 502, 503), answer.status_code
                if answer.status_code == 200:
                    await self._follow(answer)
        except httpx2.TransportError:
            pass  # nobody listens, or the head was cut

    async def _follow(self, answer: httpx2.Response) -> None:
        lines: list[str] = []
        self.streaming += 1
        try:
            async for line in answer.aiter_lines():
                lines += [line] if line else []
        except httpx2.TransportError:
            pass
        finally:
            self.streaming -= 1
        self.visits.append(
            Visit(
                workload=WorkloadId(answer.headers["x-lunanexa-workload-id"]),
                output=any('"content"' in line for line in lines),
                whole=lines[-1:] == ["data: [DONE]"],
            )
        )


def engine_ended(pid: int) -> int:
    """How many requests a reference engine has begun and ended, in which way ever; it works on none."""
    arguments = command_line(pid)
    variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    key = next(one for one in variables if one.startswith("LUNANEXA_ENGINE_API_KEY=")).partition("=")[2]
    page = httpx2.get(
        f"http://127.0.0.1:{arguments[arguments.index('--port') + 1]}/metrics",
        headers={"authorization": f"Bearer {key}"},
        timeout=LIMIT_S,
    ).text
    lines = [line for line in page.splitlines() if line.startswith("vllm:request_success_total{")]
    assert lines
    assert "vllm:num_requests_running" in page
    return round(sum(float(line.rpartition(" ")[2]) for line in lines))


async def receipts_in(data_dir: Path) -> dict[WorkloadId, Receipt]:
    """The receipts of a stopped installation, as :func:`receipts_of` checks them."""
    async with open_sqlite_journal(data_dir / "controller" / "store.sqlite3") as journal:
        return await receipts_of(journal)


async def receipts_of(journal: JournalReader) -> dict[WorkloadId, Receipt]:
    """The receipts of a service that does nothing now: the chains verify, and each admitted request has exactly one."""
    admitted: Counter[WorkloadId] = Counter()
    settled: Counter[WorkloadId] = Counter()
    receipts: dict[WorkloadId, Receipt] = {}
    replay = Replay()
    async for row in journal.read():
        replay.feed(row)
        match from_row(row):
            case WorkloadAdmitted(request=request):
                admitted[request.workload] += 1
            case WorkloadSettled(receipt=receipt):
                settled[receipt.workload] += 1
                receipts[receipt.workload] = receipt
            case _:
                pass
    assert admitted == settled
    assert set(settled.values()) <= {1}
    assert not replay.state.open
    assert not replay.state.open_of_key
    return receipts


async def is_settled(journal: JournalReader) -> bool:
    """Whether no admitted request is without its receipt."""
    replay = Replay()
    async for row in journal.read():
        replay.feed(row)
    return not replay.state.open
