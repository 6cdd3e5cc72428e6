"""Snapshots: the state as of one row, as a file holds it.

Lines of canonical JSON: the first says what it is and of which row, then one for each entry of each table, in the
tables' own order, and the last is the SHA-256 of all before it. What can't be used is told as a value: state can always
be rebuilt from the rows.
"""

import hashlib
import json
from collections.abc import Iterator
from typing import Any, Final, get_args, get_origin, get_type_hints

import attrs

from lunanexa_apps.codec import CodecError, decode, encode, structure, unstructure
from lunanexa_core.canonical import canonical_known
from lunanexa_core.journal import Head
from lunanexa_core.kernel.apply import APPLY_VERSION
from lunanexa_core.state import State

SNAPSHOT_SCHEMA: Final = "lunanexa.snapshot.v1"
_FIELDS: Final[dict[str, Any]] = get_type_hints(State)
_TABLES: Final[dict[str, tuple[Any, Any]]] = {
    name: get_args(kind) for name, kind in _FIELDS.items() if get_origin(kind) is dict
}


@attrs.frozen(kw_only=True)
class Snapshot:
    """The state once the row ``head.sequence`` was applied, and the wall time of events then. ``state`` may be changed
    by whoever decoded it."""

    head: Head
    wall_ms: int
    state: State


@attrs.frozen
class Unusable:
    """Why a file is not used."""

    reason: str


@attrs.frozen(kw_only=True)
class _Beginning:
    """The first line."""

    schema: str
    apply_version: int
    sequence: int
    epoch: int
    journal: str
    ledger: str
    wall_ms: int


@attrs.frozen
class _Seal:
    """The last line: of all bytes before it, hex."""

    sha256: str


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """The file of ``snapshot``."""
    head = snapshot.head
    beginning = _Beginning(
        schema=SNAPSHOT_SCHEMA,
        apply_version=APPLY_VERSION,
        sequence=head.sequence,
        epoch=head.epoch,
        journal=head.journal,
        ledger=head.ledger,
        wall_ms=snapshot.wall_ms,
    )
    lines = [encode(beginning), *map(canonical_known, _entries(snapshot.state))]
    body = b"".join(line + b"\n" for line in lines)
    return body + encode(_Seal(hashlib.sha256(body).hexdigest())) + b"\n"


def decode_snapshot(data: bytes) -> Snapshot | Unusable:
    """What ``data`` holds, if this version may go on from it."""
    body, seal = _sealed(data)
    if seal is None:
        return Unusable("it is cut, or another program's file")
    if seal.sha256 != hashlib.sha256(body).hexdigest():
        return Unusable("its bytes are not those that were written")
    try:
        first, *lines = body.decode().removesuffix("\n").split("\n")
        beginning = structure(_Beginning, json.loads(first))
        if beginning.schema != SNAPSHOT_SCHEMA:
            return Unusable("it has the form of another version of lunanexa")
        if beginning.apply_version != APPLY_VERSION:
            return Unusable(f"it has apply version {beginning.apply_version}, this program {APPLY_VERSION}")
        state = _state(lines)
    except (CodecError, json.JSONDecodeError, UnicodeDecodeError) as error:
        return Unusable(f"it does not fit this version of lunanexa ({error})")
    return Snapshot(
        head=Head(
            sequence=beginning.sequence, epoch=beginning.epoch, journal=beginning.journal, ledger=beginning.ledger
        ),
        wall_ms=beginning.wall_ms,
        state=state,
    )


def _entries(state: State) -> Iterator[list[Any]]:
    for name in _FIELDS:
        value = getattr(state, name)
        if name in _TABLES:
            yield from ([name, key, unstructure(entry)] for key, entry in value.items())
        else:
            yield [name, unstructure(value)]


def _sealed(data: bytes) -> tuple[bytes, _Seal | None]:
    """All before the last line, and that."""
    begin = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        return data[:begin], decode(_Seal, data[begin:])
    except CodecError:
        return data, None


def _state(lines: list[str]) -> State:
    # The seal has shown that these are our own bytes: a stricter reading would find nothing more.
    state = State()
    for line in lines:
        match json.loads(line):
            case [str(name), str(key), document] if name in _TABLES:
                getattr(state, name)[key] = structure(_TABLES[name][1], document)
            case [str(name), document] if name in _FIELDS and name not in _TABLES:
                setattr(state, name, structure(_FIELDS[name], document))
            case _:
                raise CodecError("$", "an entry of no table")
    return state
