"""One question to the controller, from a command: its JSON answer, or the end of the program with what helps."""

import json
from functools import partial
from typing import Any

import click
import trio

from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import Target, fail_refused, fail_unreachable, find_target
from lunanexa_apps.cli.tools import Tools
from lunanexa_apps.up.plane import PlaneRefusal
from lunanexa_core.canonical import JsonValue
from lunanexa_ports.errors import PortError

OPERATOR_TOKEN = "the operator token"
API_KEY = "an API key"


def ask_operator(
    tools: Tools,
    flags: dict[str, str | None],
    config: str | None,
    method: str,
    path: str,
    document: JsonValue = None,
) -> tuple[Any, Target]:
    """What the operator plane answers."""
    target = find_target(tools, settings_or_exit(flags, config))
    return _answer_or_exit(tools, target, method, path, document, OPERATOR_TOKEN), target


def ask_data_plane(tools: Tools, flags: dict[str, str | None], config: str | None, path: str) -> tuple[Any, Target]:
    """What the data plane answers to the API key."""
    target = find_target(tools, settings_or_exit(flags, config))
    return _answer_or_exit(tools, target, "GET", path, None, API_KEY), target


def print_json(document: Any) -> None:
    """One document, as it came."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def entries(document: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a document; an odd document has none."""
    found = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


def _answer_or_exit(tools: Tools, target: Target, method: str, path: str, document: JsonValue, token_name: str) -> Any:
    answer = tools.run(partial(_ask, tools, target, method, path, document, token_name))
    if isinstance(answer, PlaneRefusal):
        fail_refused(target, answer, token_name=token_name)
    if isinstance(answer, PortError):
        fail_unreachable(target, answer)
    return answer


async def _ask(tools: Tools, target: Target, method: str, path: str, document: JsonValue, token_name: str) -> Any:
    http = tools.make_http()
    plane = target.data_plane(http) if token_name == API_KEY else target.operator_plane(http)
    try:
        return await plane.ask(method, path, document)
    except PortError as error:
        return error
    finally:
        with trio.move_on_after(1, shield=True):
            await http.aclose()
