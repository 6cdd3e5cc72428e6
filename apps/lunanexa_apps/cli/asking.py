"""One question to the controller, from a command: its JSON answer, or the end of the program with what helps."""

import json
from functools import partial
from typing import Any

import click
import trio

from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import Target, fail_refused, fail_unreachable, fail_with, find_target
from lunanexa_apps.cli.tools import Tools
from lunanexa_apps.up.plane import PlaneRefusal
from lunanexa_client import AsyncClient, LunaNexaError, Model
from lunanexa_core.canonical import JsonValue
from lunanexa_ports.errors import PortError

OPERATOR_TOKEN = "the operator token"


def ask_operator(
    tools: Tools,
    flags: dict[str, str | None],
    config: str | None,
    method: str,
    path: str,
    document: JsonValue = None,
    *,
    listed_by: str | None = None,
) -> tuple[Any, Target]:
    """What the operator plane answers. ``listed_by`` is the command that shows what there is, where it is not."""
    target = find_target(tools, settings_or_exit(flags, config))
    answer = tools.run(partial(_ask, tools, target, method, path, document))
    if isinstance(answer, PlaneRefusal):
        fail_refused(target, answer, token_name=OPERATOR_TOKEN, listed_by=listed_by)
    if isinstance(answer, PortError):
        fail_unreachable(target, answer)
    return answer, target


def ask_models(tools: Tools, flags: dict[str, str | None], config: str | None) -> tuple[tuple[Model, ...], Target]:
    """What can be called now with the API key."""
    target = find_target(tools, settings_or_exit(flags, config))
    settings = target.client_settings()

    async def ask() -> tuple[Model, ...] | LunaNexaError:
        http = tools.make_http()
        try:
            return await AsyncClient(settings=settings, http=http, ids=tools.make_ids()).models()
        except LunaNexaError as error:
            return error
        finally:
            with trio.move_on_after(1, shield=True):
                await http.aclose()

    found = tools.run(ask)
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name="an API key")
    return found, target


def print_json(document: Any) -> None:
    """One document, as it came."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def entries(document: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a document; an odd document has none."""
    found = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []


async def _ask(tools: Tools, target: Target, method: str, path: str, document: JsonValue) -> Any:
    http = tools.make_http()
    try:
        return await target.operator_plane(http).ask(method, path, document)
    except PortError as error:
        return error
    finally:
        with trio.move_on_after(1, shield=True):
            await http.aclose()
