"""The numbered output of a workload: no gap, no repetition, and never more held than was allowed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from lunanexa_adapters.websocket.log import Log, Room
from lunanexa_adapters.websocket.pieces import Piece
from tests.examples import examples

PIECES_MAX = 8
BYTES_MAX = 100
TOTAL_BYTES = 150


class LogMachine(RuleBasedStateMachine):
    """Two logs in one room, against the list of everything that was said."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(TOTAL_BYTES)
        self.log = Log(self.room, kept=True, pieces_max=PIECES_MAX, bytes_max=BYTES_MAX)
        self.other = Log(self.room, kept=True, pieces_max=PIECES_MAX, bytes_max=BYTES_MAX)
        self.said: list[Piece] = []
        self.sent = 0

    @initialize(size=st.integers(0, TOTAL_BYTES))
    def fill(self, size: int) -> None:
        self.other.append(Piece(text="o" * size, is_event=True))

    @rule(size=st.integers(1, BYTES_MAX), present=st.booleans())
    def say(self, size: int, present: bool) -> None:
        piece = Piece(text="x" * size, is_event=True)
        if present:
            self.log.trim(piece)
        if self.log.fits(piece) if self.log.kept else self.log.unsent < PIECES_MAX:
            self.log.append(piece)
            self.said.append(piece)

    @precondition(lambda self: self.log.unsent)
    @rule()
    def send(self) -> None:
        piece = self.log.next()
        assert piece is self.said[self.sent]
        self.sent += 1
        assert self.log.sent() == self.sent

    @precondition(lambda self: self.log.kept)
    @rule(after=st.integers(0, 40))
    def come_back(self, after: int) -> None:
        if self.log.rewind(after):
            assert after <= len(self.said)
            self.sent = after
        else:
            assert after > len(self.said) or after < self.sent

    @rule()
    def fail(self) -> None:
        self.log.drop_unsent()
        del self.said[self.sent :]

    @rule()
    def forget(self) -> None:
        self.log.forget()

    @invariant()
    def numbers_add_up(self) -> None:
        assert self.log.last_seq == len(self.said)
        assert self.log.unsent == len(self.said) - self.sent
        assert (self.log.next() is None) == (self.log.unsent == 0)

    @invariant()
    def room_is_what_is_held(self) -> None:
        held = self.room.used_bytes - self.other_bytes()
        assert 0 <= held <= BYTES_MAX
        assert held >= sum(len(piece.text) for piece in self.said[self.sent :]) or not self.log.kept
        assert self.room.used_bytes <= TOTAL_BYTES
        if not self.log.kept:
            assert held == 0

    def other_bytes(self) -> int:
        piece = self.other.next()
        return 0 if piece is None else len(piece.text)


TestLog = LogMachine.TestCase
TestLog.settings = settings(max_examples=examples(40), stateful_step_count=40, deadline=None)


def test_a_client_that_is_there_leaves_half_of_the_room_for_its_absence() -> None:
    log = Log(Room(TOTAL_BYTES), kept=True, pieces_max=PIECES_MAX, bytes_max=BYTES_MAX)
    for number in range(20):
        piece = Piece(text=str(number), is_event=True)
        log.trim(piece)
        log.append(piece)
        log.sent()
    assert log.rewind(16)
    assert not log.rewind(15)
    assert sum(log.fits(Piece(text="x", is_event=True)) for _ in range(1)) == 1
