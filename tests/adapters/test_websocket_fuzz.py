"""Any order of submissions, credits, cancellations, drops, resumptions and nonsense: numbers without a gap, one end
each, and nothing left behind."""

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from lunanexa_adapters.websocket.application import WebSocketPlane
from lunanexa_adapters.websocket.settings import WebSocketSettings
from lunanexa_core.contract.frames import (
    Accepted,
    Cancel,
    Cancelled,
    Completed,
    Credit,
    Event,
    Failed,
    Goaway,
    Resume,
    ServerFrame,
    Submit,
)
from lunanexa_core.ids import SessionId
from lunanexa_simulation.clock import SimulatedClock
from lunanexa_simulation.ids import SimulatedIds
from lunanexa_simulation.metrics import SimulatedMetrics
from lunanexa_simulation.rng import Streams
from tests.adapters.ws_driver import Socket, connected
from tests.adapters.ws_gateway import GOOD_KEY, NoWorkloads, ScriptedGateway
from tests.examples import examples

pytestmark = pytest.mark.thorough

NAMES = ("a", "b", "c")
KEY = (b"authorization", b"Bearer " + GOOD_KEY.encode())


@attrs.frozen
class Say:
    """One thing that a client may do; ``name`` is a workload's."""

    what: str
    name: str
    number: int


steps = st.builds(
    Say,
    st.sampled_from(["submit", "submit", "resumable", "wait", "credit", "cancel", "drop", "nonsense", "read", "read"]),
    st.sampled_from(NAMES),
    st.integers(0, 400),
)


@attrs.define
class Known:
    """What the client knows of one workload that it began."""

    token: str | None = None
    seq: int = 0
    ended: bool = False


class Client:
    """Keeps the rules of the protocol but where it means not to, and checks that the server keeps them."""

    def __init__(self) -> None:
        self.live: dict[str, Known] = {}
        self.kept: list[Known] = []
        self.ended = 0

    def hear(self, frames: Sequence[ServerFrame]) -> None:
        for frame in frames:
            assert not isinstance(frame, Goaway)
            known = self.live.get(frame.id)
            assert known is not None, f"a frame of an ended workload: {frame}"
            match frame:
                case Accepted():
                    known.token = frame.resume_token
                case Event() | Completed():
                    assert frame.seq == known.seq + 1
                    known.seq = frame.seq
                case Failed() | Cancelled():
                    pass
            if isinstance(frame, Completed | Failed | Cancelled):
                known.ended = True
                self.ended += 1
                del self.live[frame.id]

    def drop(self) -> None:
        """The connection is gone; what has a token may be resumed."""
        self.kept = [known for known in self.live.values() if known.token is not None]
        self.live.clear()

    def resume(self, socket: Socket) -> None:
        for name, known in zip(NAMES, self.kept, strict=False):
            assert known.token is not None
            self.live[name] = known
            socket.say(Resume(name, known.seq, known.token))
        self.kept = []


async def play(client: Client, socket: Socket, script: list[Say]) -> None:
    """To the next drop, or the end of the script."""
    while script:
        step = script.pop()
        request: dict[str, Any] = {"events": step.number}
        match step.what:
            case "submit" | "resumable" | "wait" if step.name not in client.live:
                request |= {"wait": True} if step.what == "wait" else {}
                client.live[step.name] = Known()
                kept = step.what == "resumable"
                socket.say(Submit(id=step.name, request=request, endpoint="chat/completions", resumable=kept))
            case "credit":
                socket.say(Credit(step.name, step.number + 1))
            case "cancel":
                socket.say(Cancel(step.name))
            case "nonsense":
                # It may cross the end of what it is about; then it is answered beside that.
                await wait_all_tasks_blocked()
                client.hear(socket.heard())
                if step.name in client.live:
                    socket.say_text(f'{{"type":"credit","id":"{step.name}","events":"many"}}')
            case "drop":
                return
            case _:
                await wait_all_tasks_blocked()
                client.hear(socket.heard())


@settings(max_examples=examples(20), deadline=None)
@given(script=st.lists(steps, max_size=25))
async def test_any_order_keeps_the_rules(script: list[Say]) -> None:
    gateway, metrics, clock = ScriptedGateway(), SimulatedMetrics(), SimulatedClock()
    app = WebSocketPlane(
        gateway=gateway,
        workloads=NoWorkloads(),
        ids=SimulatedIds(Streams(5).stream("websocket"), clock),
        clock=clock,
        metrics=metrics,
        session=SessionId("ses_1"),
        settings=WebSocketSettings(workloads_max=2, outbox_bytes=4_000),
    )
    client, left = Client(), script[::-1]
    async with trio.open_nursery() as nursery:
        await nursery.start(app.run)
        while left:
            async with connected(app, headers=(KEY,)) as socket:
                client.resume(socket)
                await play(client, socket, left)
                await wait_all_tasks_blocked()
                client.hear(socket.heard())
                assert not socket.closed.is_set(), socket.code
            client.drop()
        app.close()
        with trio.fail_after(5):
            while gateway.running:
                await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel("the test is over")
    assert app.kept_bytes == 0
    assert metrics.value("lunanexa_websocket_connections") == 0
