"""Composition root of ``lunanexa-sim``."""

import sys
from collections.abc import Sequence

import trio

from lunanexa_simulation.cli.program import start
from lunanexa_simulation.cli.tools import Tools


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    return start(arguments, Tools(loop=trio.run))


if __name__ == "__main__":
    sys.exit(main())
