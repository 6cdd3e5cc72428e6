"""How this machine's own node enrols: as any other, by a token, which lies in the node's folder until it was used."""

from collections.abc import Callable
from typing import Final

import trio

from lunanexa_apps.call_errors import exit_code_of, unanswered, words_of
from lunanexa_apps.installation import LOCAL_NODE, NODE_IDENTITY, NODE_TOKEN
from lunanexa_apps.up.deploy import CHANGE_DEADLINE_MS, POLL_S, Planes
from lunanexa_apps.up.screen import Failure
from lunanexa_client import LunaNexaError, NotFound
from lunanexa_ports.errors import PortError
from lunanexa_ports.private_files import PrivateFiles

_EXIT_CONFIG: Final = 78


async def provide_token(files: PrivateFiles, planes: Planes, progress: Callable[[str], None]) -> Failure | None:
    """Has a token minted where the node can't do without one: it has no identity, or the controller knows of none.
    Waits for that until a controller can say so; a node with an identity starts without its word."""
    try:
        has_identity = files.read(NODE_IDENTITY) is not None
        while True:
            try:
                if has_identity and await _is_enrolled(planes):
                    return None
                minted = await planes.operator.mint_token(
                    LOCAL_NODE, again=True, loopback=True, deadline_ms=CHANGE_DEADLINE_MS
                )
                files.replace(NODE_TOKEN, str(minted["line"]).encode() + b"\n")
                return None
            except LunaNexaError as error:
                if not unanswered(error) and error.status != 503:
                    return Failure(
                        message=f"the controller mints no token for this machine's node: {words_of(error)}",
                        exit_code=exit_code_of(error),
                    )
                if has_identity:
                    return None
            progress("waiting until the controller can take this machine's node in")
            await trio.sleep(POLL_S)
    except PortError as error:
        return Failure(message=str(error), exit_code=_EXIT_CONFIG)


async def _is_enrolled(planes: Planes) -> bool:
    try:
        node = await planes.operator.node(LOCAL_NODE)
    except NotFound:
        return False
    return node.get("enrolled") is True
