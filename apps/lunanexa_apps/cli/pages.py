"""Consoles for whole pages."""

import os
from typing import Final

from rich.console import Console

WIDTH_IN_A_PIPE: Final = 160


def page_console() -> Console:
    """Standard output. Where it is no terminal, lines are wide enough not to be folded: a program reads them."""
    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = WIDTH_IN_A_PIPE
    return console
