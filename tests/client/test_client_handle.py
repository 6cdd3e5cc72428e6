"""A workload's handle under any order of events, reading and drops: nothing twice, nothing missing, bounded."""

from typing import Any

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from lunanexa_client.errors import ProtocolError
from lunanexa_client.handle import GRANT_EVENTS, WorkloadHandle
from lunanexa_core.contract.frames import CREDITS, Accepted, ClientFrame, Completed, Credit, Event, Resume
from lunanexa_core.ids import WorkloadId
from tests.examples import examples

ACCEPTED = Accepted(id="w1", workload_id=WorkloadId("wl_1"), resume_token="t")
# (what happens, how often)
steps = st.lists(st.tuples(st.sampled_from(["send", "send", "read", "drop"]), st.integers(1, CREDITS)), max_size=12)


class Model:
    """The server's side by the rules of the frames, and what was read."""

    def __init__(self) -> None:
        self.sent_seq = 0
        self.credit = CREDITS
        self.read: list[Any] = []
        self.handle = WorkloadHandle("w1", self.hear)
        self.handle.take(ACCEPTED)

    async def hear(self, frame: ClientFrame) -> None:
        await trio.lowlevel.checkpoint()
        assert isinstance(frame, Credit)
        assert frame.events == GRANT_EVENTS
        self.credit += frame.events

    def send(self, events: int) -> None:
        for _ in range(min(events, self.credit)):
            self.sent_seq += 1
            self.credit -= 1
            self.handle.take(Event("w1", self.sent_seq, self.sent_seq))

    async def read_some(self, events: int) -> None:
        for _ in range(min(events, self.sent_seq - len(self.read))):
            self.read.append(await anext(self.handle))

    def drop(self) -> None:
        (said,) = self.handle.resume()
        assert said == Resume("w1", len(self.read), "t")
        self.sent_seq, self.credit = len(self.read), CREDITS


@settings(max_examples=examples(50))
@given(steps)
def test_what_is_read_is_what_was_made(steps: list[tuple[str, int]]) -> None:
    async def run() -> None:
        model = Model()
        for what, events in steps:
            match what:
                case "send":
                    model.send(events)
                case "read":
                    await model.read_some(events)
                case _:
                    model.drop()
        model.handle.take(Completed("w1", model.sent_seq + 1, {"made": model.sent_seq}))
        assert not model.handle.resumable
        model.read += [data async for data in model.handle]
        assert model.read == list(range(1, model.sent_seq + 1))
        assert await model.handle.result() == {"made": model.sent_seq}

    trio.run(run)


@given(st.lists(st.integers(1, 5), max_size=8))
def test_any_other_order_is_refused(sequence: list[int]) -> None:
    handle = WorkloadHandle("w1", Model().hear)
    for place, seq in enumerate(sequence, start=1):
        if seq != place:
            with pytest.raises(ProtocolError, match=f"event {place} is missing"):
                handle.take(Event("w1", seq, None))
            return
        handle.take(Event("w1", seq, None))
