"""Why a connection ends. Close codes speak of the connection only; of a workload, frames do.

Source: https://www.rfc-editor.org/rfc/rfc6455#section-7.4.1 and, for 1012,
https://www.iana.org/assignments/websocket/websocket.xml
"""

from typing import Final

import attrs


@attrs.frozen
class Closing:
    """A close frame of ours. The reason is fixed text, 123 bytes at most. ``flush``: what waits to be written goes
    out before it."""

    code: int
    reason: str
    flush: bool = True


GONE: Final = Closing(1006, "", flush=False)
"""The client left or its connection broke: no close frame can be sent."""
BINARY: Final = Closing(1003, "frames are text")
NO_FRAME: Final = Closing(1007, "not a frame of lunanexa.v1")
KEY_REFUSED: Final = Closing(1008, "the key is not in force")
FAULT: Final = Closing(1011, "an internal error")
RESTART: Final = Closing(1012, "the service is stopping")
SLOW_CONSUMER: Final = Closing(4008, "events were not taken in time", flush=False)
