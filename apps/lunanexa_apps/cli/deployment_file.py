"""A deployment in a file: JSON, or TOML where the name ends in ``.toml`` or the text is no JSON object."""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any, Final, NoReturn

from lunanexa_apps.cli.tools import EXIT_CONFIG, fail
from lunanexa_core.ids import is_identifier

BYTES_MAX: Final = 1 << 20
STDIN: Final = "-"
EXAMPLE: Final = "docs/operations/nodes.md has an example"


def read_deployment(path: str) -> dict[str, Any]:
    """The document, with a name in ``deployment``. Ends the program where there is none; what is in it the controller
    checks."""
    text = _text(path)
    toml = path.endswith(".toml") or (path == STDIN and not text.lstrip().startswith("{"))
    try:
        document = tomllib.loads(text) if toml else json.loads(text)
        # TOML has dates, and JSON half characters: neither can be sent.
        json.dumps(document, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        _fail(f"{path} can't be read as {'TOML' if toml else 'JSON'}: {error}")
    if not isinstance(document, dict):
        _fail(f"{path} is no JSON object")
    name = document.get("deployment")
    if not isinstance(name, str) or not is_identifier(name):
        _fail(f"{path}: 'deployment' must be the deployment's name: ASCII letters, digits and -_.: only")
    return document


def mend_in(path: str) -> str:
    """What comes next where the controller refuses what is in it."""
    place = "what was piped in" if path == STDIN else path
    return f"mend {place}, and repeat the command; {EXAMPLE}"


def _text(path: str) -> str:
    try:
        if path == STDIN:
            data = sys.stdin.buffer.read(BYTES_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(BYTES_MAX + 1)
    except OSError as error:
        _fail(f"{path}: {error.strerror or error}")
    if len(data) > BYTES_MAX:
        _fail(f"{path} is longer than {BYTES_MAX} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        _fail(f"{path} is not UTF-8 text")


def _fail(message: str) -> NoReturn:
    fail(message, hint=EXAMPLE, exit_code=EXIT_CONFIG)
