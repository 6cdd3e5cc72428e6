"""Questions to the controller, from a command: the answer, or the end of the program with what helps."""

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import click
import trio

from lunanexa_apps.cli.options import settings_or_exit
from lunanexa_apps.cli.target import Target, fail_with, find_target
from lunanexa_apps.cli.tools import Tools
from lunanexa_client import AsyncClient, AsyncOperator, ClientSettings, LunaNexaError, Model

T = TypeVar("T")

API_KEY: Final = "an API key"
OPERATOR_TOKEN: Final = "the operator token"


def ask_operator(
    tools: Tools,
    flags: dict[str, str | None],
    config: str | None,
    ask: Callable[[AsyncOperator], Awaitable[T]],
    *,
    listed_by: str | None = None,
    written_as: str | None = None,
) -> tuple[T, Target]:
    """What ``ask`` gets of the operator plane. ``listed_by`` is the command that shows what there is, ``written_as``
    says where a document that is refused is mended."""
    target = find_target(tools, settings_or_exit(flags, config))
    found = tools.run(partial(use_client, tools, target.operator_settings(), lambda client: ask(client.operator)))
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name=OPERATOR_TOKEN, listed_by=listed_by, written_as=written_as)
    return found, target


def ask_models(tools: Tools, flags: dict[str, str | None], config: str | None) -> tuple[tuple[Model, ...], Target]:
    """What can be called now with the API key."""
    target = find_target(tools, settings_or_exit(flags, config))
    found = tools.run(partial(use_client, tools, target.client_settings(), AsyncClient.models))
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name=API_KEY)
    return found, target


async def use_client(
    tools: Tools, settings: ClientSettings, work: Callable[[AsyncClient], Awaitable[T]]
) -> T | LunaNexaError:
    """What ``work`` returns with a client that is closed afterwards, or the error that ended it."""
    http = tools.make_http()
    try:
        return await work(AsyncClient(settings=settings, http=http, ids=tools.make_ids()))
    except LunaNexaError as error:
        return error
    finally:
        with trio.move_on_after(1, shield=True):
            await http.aclose()


def print_json(document: Any) -> None:
    """One document, as it came."""
    click.echo(json.dumps(document, indent=2, ensure_ascii=False))


def entries(document: Any, name: str) -> list[dict[str, Any]]:
    """The objects of a list in a document; an odd document has none."""
    found = document.get(name) if isinstance(document, dict) else None
    return [entry for entry in found if isinstance(entry, dict)] if isinstance(found, list) else []
