"""The digest of a state of any size, counted together without keeping others waiting."""

import hashlib
from typing import Final

import trio

from lunanexa_core.state import State
from lunanexa_core.state_digest import digest_parts

PARTS_AT_ONCE: Final = 64


async def digest_of(state: State) -> str:
    """:func:`~lunanexa_core.state_digest.state_digest` in slices. ``state`` is a copy: nobody changes it meanwhile."""
    digest = hashlib.sha256()
    for number, part in enumerate(digest_parts(state), 1):
        digest.update(part)
        if number % PARTS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
    return digest.hexdigest()
