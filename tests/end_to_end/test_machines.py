"""Four machines, each in a network namespace, and a controller outside, over real mutual TLS: enrolled, deployed on,
cut off both ways and one way, healed, drained, killed, and the trust of all rotated under open streams.

What no moment of it may show: a request that was admitted while a start id was not to be granted, and went to it."""

import signal
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import attrs
import httpx2
import pytest
import trio

from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
from lunanexa_apps.controller.rows import from_row
from lunanexa_apps.installation import STORE
from lunanexa_core.events import Event
from tests.end_to_end.controllers import until
from tests.end_to_end.installation import LIMIT_S, QUESTION, Ready
from tests.end_to_end.machines import Fleet, Machine, fleet, say, why_not
from tests.end_to_end.old_starts import grants_to_old_starts

_WHY_NOT = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(_WHY_NOT is not None, reason=_WHY_NOT or "")]

ALL: Final = "tiny"
"""Has a replica on every machine."""
ONE: Final = "solo"
"""Has one replica, which moves when its machine is lost."""
STREAMS: Final = 50


def body(model: str, tokens: int) -> dict[str, Any]:
    return {"model": model, "messages": [QUESTION], "max_tokens": tokens, "ignore_eos": True, "stream": True}


def lines_of(answer: httpx2.Response) -> AbstractAsyncContextManager[AsyncIterator[str]]:
    """Closed also by who leaves early."""
    return aclosing(cast("AsyncGenerator[str, None]", answer.aiter_lines()))


async def first_token(ready: Ready, model: str) -> bool:
    """Whether a stream brings output now."""
    async with httpx2.AsyncClient(headers={"authorization": f"Bearer {ready.api_key}"}, timeout=LIMIT_S) as client:
        with suppress(httpx2.TransportError):
            async with client.stream("POST", f"{ready.base_url}/chat/completions", json=body(model, 2)) as answer:
                if answer.status_code == 200:
                    async with lines_of(answer) as lines:
                        return any([True async for line in lines if '"content"' in line])
    return False


async def until_served(ready: Ready, model: str) -> float:
    """Seconds until a stream of this model brings its first token."""
    began_s = trio.current_time()
    with trio.fail_after(LIMIT_S):
        while not await first_token(ready, model):
            await trio.sleep(0.05)
    return trio.current_time() - began_s


@attrs.define
class Streams:
    """Open streams and how they ended."""

    begun: int = 0
    whole: int = 0
    cut: int = 0


@asynccontextmanager
async def open_streams(ready: Ready, model: str, count: int, tokens: int) -> AsyncIterator[Streams]:
    """Streams that have all begun when the block does, and have ended when it has."""
    streams = Streams()

    async def one(client: httpx2.AsyncClient) -> None:
        last = ""
        with suppress(httpx2.TransportError):
            async with client.stream("POST", f"{ready.base_url}/chat/completions", json=body(model, tokens)) as answer:
                assert answer.status_code == 200, answer.status_code
                async with lines_of(answer) as lines:
                    async for line in lines:
                        streams.begun += not last
                        last = line or last
        if last == "data: [DONE]":
            streams.whole += 1
        else:
            streams.cut += 1

    headers = {"authorization": f"Bearer {ready.api_key}"}
    limits = httpx2.Limits(max_connections=count + 1)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=LIMIT_S, limits=limits) as client,
        trio.open_nursery() as nursery,
    ):
        for _ in range(count):
            nursery.start_soon(one, client)
        with trio.fail_after(LIMIT_S):
            while streams.begun + streams.cut < count:
                await trio.sleep(0.02)
        yield streams


class Clients:
    """Short requests, one after another, for as long as the block runs."""

    def __init__(self, ready: Ready) -> None:
        self._ready = ready
        self.served = 0

    async def run(self, model: str) -> None:
        while True:
            self.served += await first_token(self._ready, model)
            await trio.sleep(0.02)


async def events_of(data_dir: Path) -> list[tuple[int, Event]]:
    async with open_sqlite_journal_reader(data_dir / STORE) as journal:
        return [(row.sequence, from_row(row)) async for row in journal.read()]


async def enrol_all(four: Fleet) -> None:
    for machine in four.machines:
        ended = await machine.enrol(four.node_port, await four.mint(machine))
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
        machine.start()
    await until(lambda: all(four.state_of(machine) == "ready" for machine in four.machines), "all nodes")


def machine_of(four: Fleet, name: str) -> Machine:
    return next(machine for machine in four.machines if machine.name == name)


async def lose_and_replace(four: Fleet, **directions: bool) -> Machine:
    """Cuts the machine of the one replica; it is served from another one before the first is healed, and after."""
    ((lost, old),) = four.serving(ONE).items()
    machine = machine_of(four, lost)
    machine.cut(**directions)
    seconds = await until_served_elsewhere(four, old)
    say(f"failover after a cut {sorted(directions)}: {seconds:.2f} s from the loss to the first token")
    machine.heal()
    await until(lambda: four.state_of(machine) == "ready", "the healed machine")
    await until(lambda: len(four.serving(ONE)) == 1, "one replica again")
    return machine


async def until_served_elsewhere(four: Fleet, old: str) -> float:
    began_s = trio.current_time()
    await until(lambda: set(four.serving(ONE).values()) - {old}, "the replacement")
    await until_served(four.ready, ONE)
    return trio.current_time() - began_s


async def test_four_machines_from_enrolment_to_rotation(tmp_path: Path) -> None:
    async with fleet(tmp_path, 4) as four:
        await enrol_all(four)
        ready = four.ready
        four.apply(ALL, replicas=4, itl_ms=20)
        four.apply(ONE, replicas=1, itl_ms=5)
        await until(lambda: len(four.serving(ALL)) == 4, "a replica on each machine")
        await until_served(ready, ONE)
        clients = Clients(ready)
        async with trio.open_nursery() as nursery:
            for model in (ALL, ALL, ONE, ONE):
                nursery.start_soon(clients.run, model)
            await lose_and_replace(four, to_node=True, from_node=True)
            await lose_and_replace(four, to_node=True)
            await lose_and_replace(four, from_node=True)

            drained = four.machines[1]
            await four.operate("node", "drain", drained.name)
            assert drained.name not in four.serving(ALL)
            await four.operate("node", "activate", drained.name)
            await until(lambda: len(four.serving(ALL)) == 4, "a replica on the machine that was drained")

            killed = four.machines[2]
            before = four.serving(ALL)[killed.name]
            killed.kill()
            await until(lambda: four.state_of(killed) == "lost", "the loss of the killed agent")
            killed.start()
            await until(lambda: four.state_of(killed) == "ready", "the agent that was started again")
            await until(partial(_serves_again, four, killed), "its replica")
            say(f"the engine of a killed agent was adopted: {four.serving(ALL)[killed.name] == before}")

            async with open_streams(ready, ALL, STREAMS, tokens=1_000) as streams:
                old = (await four.operate("trust", "show"))["authorities"]
                await four.operate("trust", "rotate")
                new = await four.operate("trust", "show")
                assert new["stage"] == "stable"
                assert {one["fingerprint"] for one in new["authorities"]}.isdisjoint(one["fingerprint"] for one in old)
                assert streams.whole == 0, "no stream has ended before the rotation has"
            assert (streams.whole, streams.cut) == (STREAMS, 0)
            await until_served(ready, ALL)
            assert clients.served
            nursery.cancel_scope.cancel()
        four.note_state()
        four.process.send_signal(signal.SIGTERM)
        assert await trio.to_thread.run_sync(four.process.wait, LIMIT_S) == 0
    assert grants_to_old_starts(await events_of(four.data_dir)) == []


def _serves_again(four: Fleet, machine: Machine) -> bool:
    return machine.name in four.serving(ALL)
