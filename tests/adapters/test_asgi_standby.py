"""The edge of a controller that does not lead: what it refuses, and what it shows as of where it has read."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from lunanexa_core.ids import HolderId
from lunanexa_simulation.journal import SimulatedJournal
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, OPERATOR_KEY, Edge, edge

CHAT = b'{"model":"tiny","messages":[{"role":"user","content":"hello"}],"max_tokens":4}'
STRANGER = (b"authorization", b"Bearer lnx_" + b"z" * 43)


@asynccontextmanager
async def standby(clock: MockClock) -> AsyncIterator[Edge]:
    """An edge whose kernel led until another controller took the lease."""
    async with edge(clock) as one:
        answer = await Client("POST", "/v1/chat/completions", CHAT, [KEY, JSON]).call(one.root)
        assert answer.status == 200
        other = SimulatedJournal(one.world.disk.mount())
        assert await other.claim(HolderId("holder_2"), "two:8400", seen=await other.look()) is not None
        with trio.fail_after(60):  # Of the simulated clock.
            while one.world.kernel.leading:
                await trio.sleep(0.1)
        yield one


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("POST", "/v1/chat/completions", CHAT, [KEY, JSON]),
        ("POST", "/v1/chat/completions", CHAT, [STRANGER, JSON]),
        ("GET", "/v1/models", b"", [KEY]),
        ("GET", "/v1/workloads", b"", [KEY]),
        ("GET", "/v1/capabilities", b"", [KEY]),
        ("GET", "/admin/v1/deployments", b"", [OPERATOR_KEY]),
        ("GET", "/admin/v1/keys", b"", [OPERATOR_KEY]),
        ("GET", "/admin/v1/requests", b"", [OPERATOR_KEY]),
        ("POST", "/admin/v1/drain", b"", [OPERATOR_KEY]),
    ],
)
async def test_what_only_a_leader_can_do_is_refused(
    autojump_clock: MockClock, method: str, path: str, body: bytes, headers: Any
) -> None:
    async with standby(autojump_clock) as one:
        answer = await Client(method, path, body, headers).call(one.root)
        assert (answer.status, answer.error()["code"]) == (503, "not_leader")
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-should-retry"] == "true"
        assert "two" not in answer.body.decode(), "where the leader is, is no caller's business"


@pytest.mark.parametrize("path", ["/admin/v1/journal", "/admin/v1/journal/head", "/admin/v1/receipts"])
async def test_journal_and_receipts_are_shown_as_of_where_it_has_read(autojump_clock: MockClock, path: str) -> None:
    async with standby(autojump_clock) as one:
        answer = await Client("GET", path, b"", [OPERATOR_KEY]).call(one.root)
        assert answer.status == 200
        assert answer.headers["x-lunanexa-as-of"] == str(one.world.kernel.head.sequence)
        refused = await Client("GET", path, b"", [STRANGER]).call(one.root)
        assert (refused.status, refused.error()["code"]) == (401, "invalid_api_key")


async def test_status_says_who_leads_and_readiness_that_this_one_does_not(autojump_clock: MockClock) -> None:
    async with standby(autojump_clock) as one:
        status = (await Client("GET", "/admin/v1/status", b"", [OPERATOR_KEY]).call(one.root)).json()
        assert (status["leading"], status["leader"]) == (False, "two:8400")
        ready = await Client("GET", "/ready").call(one.root)
        assert (ready.status, ready.json()["blockers"]) == (503, ["not_leader"])


async def test_a_controller_that_was_never_told_a_key_calls_none_wrong(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        one.world.disk.faults.unavailable = True
        one.world.kernel.leading = one.world.kernel.replayed = one.world.kernel.store_ok = False
        for path, key in (
            ("/v1/models", STRANGER),
            ("/admin/v1/status", STRANGER),
            ("/admin/v1/journal", OPERATOR_KEY),
        ):
            answer = await Client("GET", path, b"", [key]).call(one.root)
            assert (answer.status, answer.error()["code"]) == (503, "store_unavailable"), path
