"""What every lease must do, tried on an empty store that may be opened several times."""

from itertools import pairwise
from typing import Final

import attrs
import trio
import trio.testing

from lunanexa_core.ids import HolderId
from lunanexa_core.journal import Head
from lunanexa_core.leadership import Lease
from lunanexa_ports.conformance.journal import DEADLINE_S, Check, OpenJournal, Store, lead, read_all, rows_after
from lunanexa_ports.journal import Appended

ONE: Final = HolderId("one")
TWO: Final = HolderId("two")
FOR_EVER_MS: Final = 3_600_000


async def check_nobody_leads_a_new_store(store: OpenJournal) -> None:
    """The lease of a new store is free, and what is nobody's nobody can renew, give back or claim as his own."""
    async with store() as journal:
        lease = await journal.look()
        assert (lease.holder, lease.epoch) == (None, 0)
        assert not await journal.renew(ONE, 0)
        await journal.release(ONE, 0)
        assert await journal.claim(ONE, "http://one", seen=None) is None
        assert await journal.look() == lease
        assert await journal.head() == Head()


async def check_claim_as_seen(store: OpenJournal) -> None:
    """A claim from the row as it was seen gets the lease and a new epoch, and both are kept."""
    async with store() as journal:
        before = await journal.look()
        head = await journal.claim(ONE, "http://one", seen=before)
        assert head is not None
        assert head.epoch > before.epoch
        assert head == await journal.head()
        lease = await journal.look()
        assert (lease.holder, lease.address, lease.epoch) == (ONE, "http://one", head.epoch)
        assert lease.changes > before.changes
    async with store() as journal:
        assert await journal.look() == lease
        assert (await journal.head()).epoch == lease.epoch


async def check_claim_keeps_head(store: OpenJournal) -> None:
    """A claim, a renewal and a release change nothing of the chains."""
    async with store() as journal:
        head = await lead(journal)
        assert await journal.append(head.epoch, head, rows_after(head, head.epoch, 3)) is Appended.DURABLE
        before = await journal.head()
        assert await journal.renew((await _held(journal)), head.epoch)
        taken = await journal.claim(ONE, "", seen=await journal.look())
        assert taken is not None
        await journal.release(ONE, taken.epoch)
        after = await journal.head()
        assert after == taken
        assert (after.sequence, after.journal, after.ledger) == (before.sequence, before.journal, before.ledger)


async def check_claim_of_a_row_that_changed(store: OpenJournal) -> None:
    """Who claims from a row that is not so any more gets nothing and changes nothing, whatever has changed in it."""
    async with store() as journal:
        stale = [await journal.look()]
        assert await journal.claim(ONE, "http://one", seen=stale[-1]) is not None
        stale.append(await journal.look())
        assert await journal.claim(ONE, "http://elsewhere", seen=None) is not None
        stale.append(await journal.look())
        await journal.release(ONE, stale[-1].epoch)
        stale.append(await journal.look())
        assert await journal.claim(TWO, "http://two", seen=stale[-1]) is not None
        now = await journal.look()
        for seen in stale:
            assert await journal.claim(TWO, "http://two", seen=seen) is None, seen
            assert await journal.claim(ONE, "http://one", seen=seen) is None, seen
        never = Lease(holder=TWO, address="http://two", epoch=now.epoch, changes=now.changes + 1)
        assert await journal.claim(ONE, "http://one", seen=never) is None
        assert await journal.look() == now


async def check_claim_by_the_holder(store: OpenJournal) -> None:
    """Without a look only the holder itself claims, as often as it likes; each time there is a new epoch."""
    async with store() as journal:
        first = await lead(journal, ONE)
        assert await journal.claim(TWO, "http://two", seen=None) is None
        again = await journal.claim(ONE, "http://moved", seen=None)
        assert again is not None
        assert again.epoch > first.epoch
        assert (await journal.look()).address == "http://moved"
    async with store() as journal:
        assert await journal.claim(TWO, "http://two", seen=None) is None
        reopened = await journal.claim(ONE, "http://one", seen=None)
        assert reopened is not None
        assert reopened.epoch > again.epoch
        await journal.release(ONE, reopened.epoch)
        assert await journal.claim(ONE, "http://one", seen=None) is None


async def check_epoch_above(store: OpenJournal) -> None:
    """The new epoch is above what was asked, and above every earlier one however low that was."""
    async with store() as journal:
        epochs: list[int] = []
        for above in (41, 41, 3, 0, 1_000_000):
            head = await journal.claim(ONE, "", seen=await journal.look(), above=above)
            assert head is not None
            assert head.epoch > above
            epochs.append(head.epoch)
            await journal.release(ONE, head.epoch)
        assert all(earlier < later for earlier, later in pairwise(epochs)), epochs
        assert await journal.claim(TWO, "", seen=None, above=2_000_000) is None
        assert (await journal.look()).epoch == epochs[-1]


async def check_one_of_two_claims_wins(store: OpenJournal) -> None:
    """Of claims at the same time from the same row exactly one gets the lease."""
    async with store() as first, store() as second:
        for _ in range(5):
            seen = await first.look()
            claimed: dict[HolderId, Head | None] = {}

            async def claim(journal: Store, holder: HolderId, seen: Lease, into: dict[HolderId, Head | None]) -> None:
                into[holder] = await journal.claim(holder, "", seen=seen)

            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(claim, first, ONE, seen, claimed)
                    nursery.start_soon(claim, second, TWO, seen, claimed)
            winners = [holder for holder, head in claimed.items() if head is not None]
            assert len(winners) == 1, claimed
            lease = await second.look()
            head = claimed[winners[0]]
            assert head is not None
            assert (lease.holder, lease.epoch) == (winners[0], head.epoch)


async def check_renewal(store: OpenJournal) -> None:
    """Only the holder in its newest epoch renews, and a renewal changes neither holder nor epoch."""
    async with store() as journal:
        old = await lead(journal, ONE)
        head = await journal.claim(ONE, "http://one", seen=None)
        assert head is not None
        lease = await journal.look()
        assert not await journal.renew(TWO, head.epoch)
        assert not await journal.renew(ONE, old.epoch)
        assert not await journal.renew(ONE, head.epoch + 1)
        assert await journal.look() == lease
        assert await journal.renew(ONE, head.epoch)
        renewed = await journal.look()
        assert (renewed.holder, renewed.address, renewed.epoch) == (ONE, "http://one", head.epoch)
        assert renewed.changes >= lease.changes
        _ = await lead(journal, TWO)
        assert not await journal.renew(ONE, head.epoch)


async def check_release(store: OpenJournal) -> None:
    """Only the holder in its newest epoch gives the lease back; nobody holds it then; its epoch is not forgotten."""
    async with store() as journal:
        old = await lead(journal, ONE)
        head = await journal.claim(ONE, "http://one", seen=None)
        assert head is not None
        lease = await journal.look()
        await journal.release(TWO, head.epoch)
        await journal.release(ONE, old.epoch)
        assert await journal.look() == lease
        await journal.release(ONE, head.epoch)
        free = await journal.look()
        assert (free.holder, free.epoch) == (None, head.epoch)
        assert free.changes > lease.changes
        assert not await journal.renew(ONE, head.epoch)
        await journal.release(ONE, head.epoch)
        assert await journal.look() == free
        next_head = await lead(journal, TWO)
        assert next_head.epoch > head.epoch


async def check_claim_against_appends(store: OpenJournal) -> None:
    """Appends in flight while another claims: those that are durable are below the head that the claim returned, and
    the others write nothing, then or later."""
    async with store() as old, store() as new:
        for turn in range(5):
            head = await lead(old, ONE)
            seen = await old.look()
            writer = _Writer(old, head)
            taken: Head | None = None
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(writer.run)
                    for _ in range(turn):
                        _ = await old.head()
                    try:
                        taken = await new.claim(TWO, "http://two", seen=seen)
                    finally:
                        writer.is_last = True
            assert taken is not None
            assert taken == attrs.evolve(writer.head, epoch=head.epoch + 1)
            assert [row.sequence for row in await read_all(new)] == list(range(1, taken.sequence + 1))
            assert await new.head() == taken


async def check_wait_wakes(store: OpenJournal) -> None:
    """A claim, an append and a release each end a wait, also when they came before it."""
    async with store() as journal:
        await _wakes(journal, journal)


async def check_wait_ends(store: OpenJournal) -> None:
    """Where nothing happens, a wait ends at its bound; a bound of 0 is one look."""
    async with store() as journal:
        _ = await lead(journal, ONE)
        with trio.fail_after(DEADLINE_S):
            for within_ms in (0, 1, 20, 0):
                await journal.wait(within_ms)


async def check_renewal_is_seen(store: OpenJournal) -> None:
    """Another opening sees each renewal as a change of the row, and so knows that the holder lives."""
    async with store() as leader, store() as watcher:
        head = await lead(leader, ONE)
        seen = [await watcher.look()]
        for _ in range(3):
            assert await leader.renew(ONE, head.epoch)
            seen.append(await watcher.look())
        assert all(earlier.changes < later.changes for earlier, later in pairwise(seen)), seen
        assert {(lease.holder, lease.epoch) for lease in seen} == {(ONE, head.epoch)}
        # From a row that the holder has renewed since, nobody claims.
        assert await watcher.claim(TWO, "", seen=seen[-2]) is None
        assert await watcher.claim(TWO, "", seen=seen[-1]) is not None
        assert not await leader.renew(ONE, head.epoch)


async def check_wait_wakes_others(store: OpenJournal) -> None:
    """What one opening writes ends the wait of another."""
    async with store() as leader, store() as watcher:
        await _wakes(leader, watcher)


CHECKS: Final[tuple[Check, ...]] = (
    check_nobody_leads_a_new_store,
    check_claim_as_seen,
    check_claim_keeps_head,
    check_claim_of_a_row_that_changed,
    check_claim_by_the_holder,
    check_epoch_above,
    check_one_of_two_claims_wins,
    check_renewal,
    check_release,
    check_claim_against_appends,
    check_wait_wakes,
    check_wait_ends,
)
SHARED_CHECKS: Final[tuple[Check, ...]] = (check_renewal_is_seen, check_wait_wakes_others)
"""For stores that several machines reach."""


class _Writer:
    """Appends until it is fenced; what begins once ``is_last`` is set must be."""

    def __init__(self, journal: Store, head: Head) -> None:
        self.head = head
        self.is_last = False
        self._journal = journal

    async def run(self) -> None:
        epoch = self.head.epoch
        while True:
            must_fail = self.is_last
            rows = rows_after(self.head, epoch, 2)
            if await self._journal.append(epoch, self.head, rows) is Appended.FENCED:
                return
            assert not must_fail, "written after another had claimed"
            self.head = self.head.after(rows[0]).after(rows[1])


async def _held(journal: Store) -> HolderId:
    holder = (await journal.look()).holder
    assert holder is not None
    return holder


async def _wakes(leader: Store, watcher: Store) -> None:
    async def append() -> None:
        head = await leader.head()
        assert await leader.append(head.epoch, head, rows_after(head, head.epoch, 1)) is Appended.DURABLE

    async def claim() -> None:
        _ = await lead(leader, ONE)

    async def release() -> None:
        await leader.release(ONE, (await leader.look()).epoch)

    for waits in (True, False):
        for change in (claim, append, release):
            for _ in range(3):
                await watcher.wait(10)  # Until no change from before is on its way.
            with trio.fail_after(DEADLINE_S):
                async with trio.open_nursery() as nursery:
                    if waits:
                        nursery.start_soon(watcher.wait, FOR_EVER_MS)
                        await trio.testing.wait_all_tasks_blocked()
                    await change()
                    if not waits:
                        await watcher.wait(FOR_EVER_MS)
