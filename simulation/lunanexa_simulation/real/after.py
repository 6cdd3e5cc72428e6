"""What is looked at when a run is over: the books, and all that was written."""

from collections.abc import Iterable, Mapping
from typing import Any

from lunanexa_apps.installation import ENGINE_SECRET
from lunanexa_core.keys import derive_engine_key
from lunanexa_simulation.client import Answer
from lunanexa_simulation.installation import PROMPT_SECRET
from lunanexa_simulation.real.books import (
    Books,
    Told,
    acknowledged_fault,
    chain_fault,
    receipt_fault,
    repeated_fault,
    replay_fault,
    starts_fault,
)
from lunanexa_simulation.real.fleet import Fleet
from lunanexa_simulation.real.leaks import files_of, leak_in
from lunanexa_simulation.real.proc import ours_that_hold
from lunanexa_simulation.real.traffic import IDEMPOTENCY_KEY


def books_faults(
    books: Books,
    told: Iterable[Told],
    whole: Iterable[Answer],
    starts: Mapping[str, int],
    status: Mapping[str, Any],
) -> dict[str, str | None]:
    """Each promise of the store with what breaks it. ``status`` was asked for when nothing was open any more."""
    counted, booked = status["usage"]["requests"], len(books.sight.shadow.receipts)
    return {
        "the hash chains of journal and ledger verify": chain_fault(books),
        "the rows make each state that the controller said it had": replay_fault(books, told),
        "each admitted workload has one receipt": receipt_fault(books),
        "what was answered whole is booked so": acknowledged_fault(books, whole),
        "nothing ran twice for one idempotency key": repeated_fault(books),
        "the status counts each receipt once": None if counted == booked else f"{counted} are counted, {booked} booked",
        "each engine was started once, and once more for each kill": starts_fault(books, starts),
    }


def shown_fault(fleet: Fleet) -> str | None:
    """A secret in a command line, which every user of a machine can read."""
    lines = ours_that_hold(fleet.places.folder)
    return leak_in(
        ((f"the command line of process {pid}", line.encode()) for pid, line in lines.items()), fleet.secrets
    )


def leak_fault(fleet: Fleet, books: Books) -> str | None:
    """A secret in a file that is not there to hold it."""
    secrets = {**fleet.secrets, "a prompt": PROMPT_SECRET, "an idempotency key": IDEMPOTENCY_KEY}
    secrets["the engine secret"] = engine_secret = (fleet.places.controller / ENGINE_SECRET).read_text().strip()
    for one in books.sight.shadow.replay.state.assignments.values():
        key = derive_engine_key(engine_secret, one.assignment, one.generation)
        secrets[f"the engine key of {one.assignment}"] = key
    return leak_in(files_of(fleet.places.folder), secrets)
