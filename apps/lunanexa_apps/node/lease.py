"""The agent's lease: whether its controller counts on it now, and what follows when it does not.

While there is none nothing is started; what runs goes on, but for replicas that may not outlive the lease for long. A
new agent process begins without one. It remembers until when its predecessor's ran only to end such replicas in time.
"""

from collections.abc import Callable
from typing import Final

import attrs
import structlog
import trio

from lunanexa_apps.codec import CodecError, decode, encode
from lunanexa_apps.node.pulse import Pulse
from lunanexa_core.southbound.heartbeat import HeartbeatAnswer
from lunanexa_core.southbound.lease import NodeLease
from lunanexa_core.time import Instant
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.node_store import NodeStore

_FACT: Final = "lease"
_LOOK_MS: Final = 1_000
"""Timers stand still while a machine is suspended, and the lease does not: so late it is noticed at most."""
_log = structlog.get_logger()


@attrs.frozen
class KeptLease:
    """Until when (this machine's clock, since it booted) an agent process had a lease."""

    until_mono_ms: int | None


class LeaseKeeper:
    """One agent process's lease. ``accepted`` tells the (epoch, generation) of the document that the replicas go by."""

    def __init__(
        self, clock: Clock, store: NodeStore, accepted: Callable[[], tuple[int, int]], *, standing: bool = False
    ) -> None:
        """``standing``: nobody grants it, and it never lapses."""
        self._clock = clock
        self._store = store
        self._accepted = accepted
        self._lease = NodeLease(standing=standing)
        self._inherited_ms: int | None = None
        self._told_live = False
        self._watchers: dict[object, Callable[[], None]] = {}
        self._turned = trio.Event()
        self._renewed, self._to_remember = Pulse(), Pulse()

    # --- what is ---

    @property
    def deadline_mono_ms(self) -> int | None:
        """Until when the lease runs, or ran; ``None``: this process never had one."""
        return self._lease.until_mono_ms

    def live(self, now: Instant) -> bool:
        """Whether the lease runs at ``now``, a reading of this machine's clock."""
        return self._lease.live(now.mono_ms)

    def may_start(self) -> bool:
        """Whether an engine may be started now: who was cut off first hears what shall run."""
        return self._lease.may_start(self._clock.now().mono_ms, self._accepted())

    def cut_off_in_ms(self, keep_ms: int) -> int:
        """How much longer an engine may run that is kept for ``keep_ms`` after the lease; 0: it must go. One whose
        lease nobody knows must go at once."""
        until_ms = self._inherited_ms if self.deadline_mono_ms is None else self.deadline_mono_ms
        return 0 if until_ms is None else max(0, until_ms + keep_ms - self._clock.now().mono_ms)

    def watch(self, tell: Callable[[], None]) -> Callable[[], None]:
        """From now on ``tell`` is called when the lease begins, when it has lapsed, and when another document is
        followed; it looks for itself which. It must be quick and must not raise. Returns what ends that."""
        token = object()
        self._watchers[token] = tell

        def unwatch() -> None:
            self._watchers.pop(token, None)

        return unwatch

    async def wait_lapsed(self) -> None:
        """Returns when there is no lease."""
        while self.live(self._clock.now()):
            await self._turned.wait()

    async def wait_granted(self) -> None:
        """Returns when there is a lease."""
        while not self.live(self._clock.now()):
            await self._turned.wait()

    async def wait_cut_off(self, keep_ms: int) -> None:
        """Returns when an engine must go that is kept for ``keep_ms`` after the lease."""
        while True:
            await self.wait_lapsed()
            left_ms = self.cut_off_in_ms(keep_ms)
            if left_ms <= 0:
                return
            with trio.move_on_after(min(left_ms, _LOOK_MS) / 1_000):
                await self.wait_granted()

    # --- what happens ---

    def answered(self, sent: Instant, answer: HeartbeatAnswer) -> None:
        """The controller answered the very heartbeat that was sent then."""
        self._note_lapse()
        self._lease = self._lease.answered(
            sent_mono_ms=sent.mono_ms,
            now_mono_ms=self._clock.now().mono_ms,
            lease_ms=answer.lease_ms,
            newest=(answer.epoch, answer.generation),
        )
        self._renewed.set()
        self._to_remember.set()
        if not self._told_live and self.live(self._clock.now()):
            self._told_live = True
            _log.info("lease_granted", lease_ms=answer.lease_ms)
            self._tell()

    def document_followed(self) -> None:
        """The replicas go by another document."""
        self._tell()

    async def load(self, *, engine_found: bool) -> None:
        """Before :meth:`run`. ``engine_found``: an engine of an earlier agent runs. Without one, what is remembered is
        of no use, and after a reboot it would be of another clock."""
        kept = await self._store.get(_FACT)
        if kept is None:
            return
        if not engine_found:
            await self._store.put(_FACT, encode(KeptLease(None)))
            return
        try:
            self._inherited_ms = decode(KeptLease, kept).until_mono_ms
        except CodecError as error:
            _log.error("stored_lease_unreadable", place=error.path, problem=error.problem)

    async def run(self, must_remember: Callable[[], bool]) -> None:
        """Notices lapses, for ever. ``must_remember``: whether there are replicas that the next agent must end in
        time."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remember, must_remember)
            while True:
                self._note_lapse()
                left_s = float("inf")
                if self._told_live and self.deadline_mono_ms is not None:
                    left_ms = self.deadline_mono_ms - self._clock.now().mono_ms
                    left_s = max(0, min(left_ms, _LOOK_MS)) / 1_000
                with trio.move_on_after(left_s):
                    await self._renewed.wait()

    async def _remember(self, must_remember: Callable[[], bool]) -> None:
        while True:
            await self._to_remember.wait()
            if must_remember():
                try:
                    await self._store.put(_FACT, encode(KeptLease(self.deadline_mono_ms)))
                except PortUnavailable as error:
                    # What is there already is earlier: the next agent ends them too soon rather than too late.
                    _log.warning("lease_not_remembered", reason=str(error))

    def _note_lapse(self) -> None:
        if self._told_live and not self.live(self._clock.now()):
            self._told_live = False
            _log.warning("lease_lapsed")
            self._tell()

    def _tell(self) -> None:
        turned, self._turned = self._turned, trio.Event()
        turned.set()
        for tell in list(self._watchers.values()):
            tell()
