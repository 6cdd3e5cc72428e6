"""One hash over all control state: what two replays, two programs or two machines compare.

It is SHA-256 over lines of canonical JSON: one for each entry of each table, in the order of the tables' fields and,
within a table, of the entries' names. The order in which entries came does not count, as it does not for equality.
"""

import enum
import hashlib
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache

import attrs

from lunanexa_core.canonical import JsonValue, canonical_json, canonical_known
from lunanexa_core.state import State


def state_digest(state: State) -> str:
    """The digest of ``state``, hex. Equal states have equal ones."""
    digest = hashlib.sha256()
    for part in digest_parts(state):
        digest.update(part)
    return digest.hexdigest()


def digest_parts(state: State) -> Iterator[bytes]:
    """What the digest is over, in small parts, for who must not stand still meanwhile. Do not change ``state``
    until the last part is taken."""
    for field in attrs.fields(State):
        value = getattr(state, field.name)
        if not isinstance(value, dict):
            yield _line(field.name, value)
            continue
        for name in sorted(value):
            yield _line(field.name, name, value[name])


def table_sizes(state: State) -> dict[str, int]:
    """How many entries each table has."""
    tables = ((field.name, getattr(state, field.name)) for field in attrs.fields(State))
    return {name: len(table) for name, table in tables if isinstance(table, dict)}


def _line(*parts: object) -> bytes:
    return canonical_known([_plain(part) for part in parts]) + b"\n"


def _plain(value: object) -> JsonValue:
    match value:
        case enum.Enum():
            return _plain(value.value)
        case None | bool() | int() | str():
            return value
        case bytes():
            return value.hex()
        case tuple() | list():
            return [_plain(item) for item in value]
        case AbstractSet():
            return sorted((_plain(item) for item in value), key=canonical_json)
        case Mapping():
            return {str(_plain(name)): _plain(item) for name, item in value.items()}
        case _:
            kind = type(value)
            assert attrs.has(kind), kind
            return {name: _plain(getattr(value, name)) for name in _members(kind)}


@cache
def _members(kind: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    """What counts of a value of this kind."""
    return tuple(field.name for field in attrs.fields(kind) if field.eq)
