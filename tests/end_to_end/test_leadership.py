"""Leadership between real controllers on one PostgreSQL: killed, stopped, cut off, started without a store. The books
are right after each: one chain, epochs that never fall, one receipt for each admitted request."""

import json
import shutil
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest
import trio

from lunanexa_adapters.postgres.address import parse_address
from lunanexa_adapters.postgres.journal import open_postgres_journal
from lunanexa_apps.controller.rows import from_row
from lunanexa_core.events import EpochBegan
from lunanexa_core.ids import WorkloadId
from lunanexa_core.journal import Row
from lunanexa_core.workload import Receipt
from lunanexa_ports.conformance.journal import read_all, verified
from tests.adapters.postgres_proxy import proxy_to
from tests.end_to_end.controllers import Member, cleaned_up, controllers, make_members, until
from tests.end_to_end.installation import LIMIT_S, HeldStream, answers, ask, held_stream
from tests.end_to_end.load import Load, is_settled, receipts_of
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

STREAM_TOKENS = 3_000
LEASE_S = 15
"""Far more than the lease: only a takeover that does not come reaches it."""


@pytest.fixture
def schema(postgres: PostgresServer) -> Iterator[str]:
    """An empty store; the server runs again afterwards."""
    yield postgres.new_schema()
    if postgres.process is None:
        postgres.start()


@pytest.fixture
def store(postgres: PostgresServer, schema: str) -> str:
    """Its address."""
    return postgres.url(schema)


async def rows_in(store: str) -> list[Row]:
    """All records: one chain, in which no epoch is followed by an earlier one."""
    async with open_postgres_journal(parse_address(store)) as journal:
        rows = await read_all(journal)
    verified(rows)
    epochs = [row.epoch for row in rows]
    assert epochs == sorted(epochs)
    return rows


async def settled_receipts(store: str) -> dict[WorkloadId, Receipt]:
    """All receipts, once no request is open any more."""
    async with open_postgres_journal(parse_address(store)) as journal:
        with trio.fail_after(60):
            while not await is_settled(journal):
                await trio.sleep(0.2)
        return await receipts_of(journal)


async def taken_over(member: Member, what: str) -> float:
    """Seconds until this controller leads."""
    began_s = trio.current_time()
    await until(member.leads, what, LEASE_S)
    seconds = trio.current_time() - began_s
    print(f"{what}: {member.name} leads after {seconds:.2f} s")
    return seconds


async def test_a_killed_leader_is_succeeded_under_load(store: str, tmp_path: Path) -> None:
    async with controllers(tmp_path, store, store) as (first, second):
        engine = first.engine()
        assert engine is not None
        load = Load(first.ready)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(load.visit)
            await load.until_streaming()
            await first.end(signal.SIGKILL)
            load.ready = second.ready
            began_s = trio.current_time()
            await taken_over(second, "after kill -9")
            ended = len(load.visits)
            await until(lambda: any(visit.whole for visit in load.visits[ended:]), "an answer of the new leader")
            print(f"after kill -9: answers again after {trio.current_time() - began_s:.2f} s")
            load.over.set()
        assert second.engine() == engine
        # What the first had in hand was cut, and is settled by the second once its gateway's session has lapsed.
        assert [visit for visit in load.visits if visit.output and not visit.whole]
        receipts = await settled_receipts(store)
        assert {visit.workload for visit in load.visits} <= set(receipts)
        await rows_in(store)
        first.start()
        await until(first.follows, "the first as a follower")


def last_error(events: list[str]) -> str | None:
    """The code in the last event of a stream, if that is an error."""
    data = events[-1].removeprefix("data: ")
    found = json.loads(data) if data.startswith("{") else {}
    code = found.get("error", {}).get("code")
    return code if code is None or isinstance(code, str) else str(code)


async def test_a_leader_that_stood_still_steps_down_and_may_lead_again(store: str, tmp_path: Path) -> None:
    async with controllers(tmp_path, store, store) as (first, second):
        engine, began = first.engine(), (await rows_in(store))[-1].epoch
        async with held_stream(first.ready, max_tokens=STREAM_TOKENS) as stream:
            first.signal(signal.SIGSTOP)
            await taken_over(second, "after SIGSTOP")
            await until(lambda: answers(second.ready), "an answer of the new leader")
            first.signal(signal.SIGCONT)
            events = await stream.rest()
        assert last_error(events) == "not_leader", events[-2:]
        await until(first.follows, "the first as a follower")
        assert first.process is not None
        assert first.process.poll() is None
        refused = ask(first.ready)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_leader")
        rows = await rows_in(store)
        # Of the first nothing came after the second's first record.
        assert {row.epoch for row in rows if row.epoch > began} == {began + 1}
        # A leader that is asked to end gives the lease back: nobody waits for it to run out.
        stopping = trio.current_time()
        assert await second.end(signal.SIGTERM) == 0
        await taken_over(first, f"after SIGTERM (gone in {trio.current_time() - stopping:.2f} s)")
        await until(lambda: answers(first.ready), "an answer of the first again")
        assert first.engine() == engine
        # What it had in hand when it was stopped is not its own any more, though its gateway is the same.
        assert (await settled_receipts(store))[WorkloadId(stream.workload)].settlement.detail == "controller_restarted"
        assert (await rows_in(store))[-1].epoch == began + 2


async def test_a_node_that_was_told_of_one_finds_the_other(store: str, tmp_path: Path) -> None:
    async with controllers(tmp_path, store, store, told=1) as (first, second):
        engine = first.engine()
        await first.end(signal.SIGTERM)
        await taken_over(second, "after SIGTERM")
        first.start()
        await until(first.follows, "the first as a follower")
        await until(lambda: answers(second.ready), "an answer of the new leader")
        await second.end(signal.SIGKILL)
        await taken_over(first, "after kill -9")
        await until(lambda: answers(first.ready), "an answer of the first again")
        assert first.engine() == engine
        events = [from_row(row) for row in await rows_in(store)]
        began = [event.node_url for event in events if isinstance(event, EpochBegan)]
        assert began == [first.node_url, second.node_url, first.node_url]


async def hold_commits(postgres: PostgresServer, schema: str, epoch: int, seconds: float) -> None:
    """From now on each append of this epoch stands for so long before its commit, within the server."""
    postgres.execute(
        f"""CREATE FUNCTION late() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NULL; END $$""",
        f"""CREATE CONSTRAINT TRIGGER late AFTER INSERT ON lunanexa_row DEFERRABLE INITIALLY DEFERRED
            FOR EACH ROW WHEN (NEW.epoch = {epoch} AND NEW.action = 'key.created') EXECUTE FUNCTION late()""",
        schema=schema,
    )


def make_key(member: Member, name: str) -> httpx2.Response:
    return httpx2.post(
        f"{member.origin}/admin/v1/keys",
        headers={"authorization": f"Bearer {member.ready.operator_token}"},
        json={"name": name},
        timeout=LIMIT_S,
    )


@pytest.mark.parametrize("seconds", [1.0, 8.0])
async def test_an_append_within_the_server_is_before_the_next_epoch_or_not_at_all(
    postgres: PostgresServer, schema: str, store: str, tmp_path: Path, seconds: float
) -> None:
    async with controllers(tmp_path, store, store) as (first, second):
        began = (await rows_in(store))[-1].epoch
        await hold_commits(postgres, schema, began, seconds)
        answers_to_key: list[int] = []

        async def ask_for_key() -> None:
            answer = await trio.to_thread.run_sync(make_key, first, "late")
            answers_to_key.append(answer.status_code)

        def commits() -> list[tuple[int]]:
            return postgres.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = 'lunanexa' AND wait_event = 'PgSleep'"
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_for_key)
            await until(commits, "an append that stands in the server")
            first.signal(signal.SIGSTOP)
            await taken_over(second, f"after SIGSTOP within an append that takes {seconds} s")
            first.signal(signal.SIGCONT)
            await until(first.follows, "the first as a follower")
        rows = await rows_in(store)
        made = [row.epoch for row in rows if row.action == "key.created" and b"late" in row.record]
        ((version,),) = postgres.execute("SELECT current_setting('server_version_num')::integer")
        # From version 17 on the server itself ends a transaction that outlasts the lease.
        assert made == ([began] if seconds < 3 or version < 170_000 else [])
        assert answers_to_key in ([503], [200], [201])
        assert {row.epoch for row in rows if row.epoch > began} == {began + 1}
        await until(lambda: answers(second.ready), "an answer of the new leader")


async def hear_on(stream: HeldStream, count: int) -> None:
    """Returns when so many more lines of an answer have come."""
    with trio.fail_after(60):
        for _ in range(count):
            await anext(stream.lines)


def refusal_of(member: Member) -> tuple[int, str | None]:
    answer = ask(member.ready)
    return answer.status_code, answer.json().get("error", {}).get("code")


async def test_a_leader_that_is_cut_off_goes_on_when_nobody_took_over(
    postgres: PostgresServer, schema: str, store: str, tmp_path: Path
) -> None:
    async with (
        proxy_to(postgres.port) as proxy,
        controllers(tmp_path, postgres.url(schema, port=proxy.port)) as (only,),
    ):
        began = (await rows_in(store))[-1].epoch
        async with held_stream(only.ready, max_tokens=1_000) as stream:
            proxy.asking.hold()
            proxy.answering.hold()
            await until(lambda: only.blockers() == ["store_unavailable"], "the word that the store is away")
            for _ in range(3):
                assert await trio.to_thread.run_sync(refusal_of, only) == (503, "store_unavailable")
            await hear_on(stream, 50)
            proxy.asking.release()
            proxy.answering.release()
            await until(only.leads, "its leading again", LEASE_S)
            await until(lambda: answers(only.ready), "an answer")
            # Its end waits for its receipt.
            assert (await stream.rest())[-1] == "data: [DONE]"
        assert (await rows_in(store))[-1].epoch > began
        assert not only.events("not_leading_any_more")


async def test_a_leader_that_is_cut_off_is_succeeded_and_follows(
    postgres: PostgresServer, schema: str, store: str, tmp_path: Path
) -> None:
    async with (
        proxy_to(postgres.port) as proxy,
        controllers(tmp_path, postgres.url(schema, port=proxy.port), store) as (first, second),
    ):
        engine, began = first.engine(), (await rows_in(store))[-1].epoch
        async with held_stream(first.ready, max_tokens=STREAM_TOKENS) as stream:
            proxy.asking.hold()
            proxy.answering.hold()
            await taken_over(second, "after a cut between leader and store")
            await until(lambda: answers(second.ready), "an answer of the new leader")
            assert await trio.to_thread.run_sync(second.engine) == engine
            # It can't know, admits nothing, and passes on what the engine still sends.
            for _ in range(3):
                assert await trio.to_thread.run_sync(refusal_of, first) == (503, "store_unavailable")
            await hear_on(stream, 20)
            proxy.asking.release()
            proxy.answering.release()
            events = await stream.rest()
        assert last_error(events) == "not_leader", events[-2:]
        await until(first.follows, "the first as a follower")
        rows = await rows_in(store)
        assert {row.epoch for row in rows if row.epoch > began} == {began + 1}


async def test_a_controller_that_starts_without_its_store_waits_for_it(
    postgres: PostgresServer, store: str, tmp_path: Path
) -> None:
    members = make_members(tmp_path, store)
    (only,) = members
    async with cleaned_up(tmp_path, members):
        postgres.stop()
        only.start()
        await until(lambda: only.blockers() == ["store_unavailable"], "a controller without a store")
        ready = only.ready
        for path, token in (
            ("/v1/models", ready.api_key),
            ("/v1/models", "nobody's"),
            ("/admin/v1/status", ready.operator_token),
            ("/admin/v1/keys", ready.operator_token),
        ):
            headers = {"authorization": f"Bearer {token}"}
            answer = await trio.to_thread.run_sync(partial(httpx2.get, f"{only.origin}{path}", headers=headers))
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable"), path
        assert await trio.to_thread.run_sync(refusal_of, only) == (503, "store_unavailable")
        postgres.start()
        await until(only.leads, "its leading", LEASE_S)
        assert await only.end(signal.SIGTERM) == 0


async def test_other_secrets_than_the_leaders_are_refused_with_the_fix(store: str, tmp_path: Path) -> None:
    members = make_members(tmp_path, store, store)
    first, second = members
    async with cleaned_up(tmp_path, members):
        first.start()
        await until(first.leads, "a leader")
        second.start()
        assert await second.end() == 78
        assert "copy the folder controller/secrets from its data directory into this one's" in second.log
        shutil.rmtree(second.secrets)
        second.take_secrets_of(first)
        second.start()
        await until(second.follows, "a follower")
        assert first.leads()
        assert await second.end(signal.SIGTERM) == 0
        assert await first.end(signal.SIGTERM) == 0
