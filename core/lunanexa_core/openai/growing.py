"""A text that comes in parts: kept as parts and joined once, because a text that were joined with each new part
would be copied with each."""

import attrs


@attrs.define
class GrowingText:
    """The parts so far, in order."""

    parts: list[str]

    def whole(self) -> str:
        """All parts as one."""
        return "".join(self.parts)
