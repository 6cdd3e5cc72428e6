"""``lunanexa key``: makes, lists, shows and revokes API keys, through the operator plane."""

import re
from collections.abc import Callable
from typing import Any, Final

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.complete import complete_keys
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.tools import Tools, write_note
from lunanexa_client import AsyncOperator
from lunanexa_core.canonical import JsonValue
from lunanexa_core.ids import is_identifier
from lunanexa_core.workload import DataClass, Priority

_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION: Final = re.compile(r"([0-9]{1,9})([smhd])")


class DurationMs(click.ParamType[int]):
    """``30d``, ``12h``, ``90m``, ``45s``, as milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        found = _DURATION.fullmatch(str(value))
        if found is None or int(found[1]) == 0:
            self.fail(f"{value!r} is no time: write it like 30d, 12h, 90m or 45s", param, ctx)
        return int(found[1]) * _UNIT_MS[found[2]]


def _common(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every subcommand."""
    metavar = {"data_dir": "DIR", "url": "URL", "token_file": "FILE"}
    options = setting_options("data_dir", "url", "token_file", metavar=metavar)
    return options(config_option(output_option(click.pass_obj(function))))


def _utf8(_: click.Context, __: click.Parameter, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
    """What is not UTF-8 in the arguments comes as lone surrogates, which no JSON text can carry."""
    try:
        "".join(value or ()).encode()
    except UnicodeEncodeError:
        raise click.BadParameter("not UTF-8 text") from None
    return value


def _identifier(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no key's identifier; lunanexa key list shows them")
    return value


_key_argument: Final = click.argument("key", callback=_identifier, shell_complete=complete_keys)
_limit: Final = click.IntRange(min=1)


@click.group("key")
def command() -> None:
    """Make, list, show and revoke API keys."""


@command.command("create")
@click.option("--name", metavar="TEXT", callback=_utf8, help="What people call it.")
@click.option(
    "--alias",
    "aliases",
    multiple=True,
    metavar="NAME",
    callback=_utf8,
    help="A model that it may use, any of them unless told; again for more.",
)
@click.option("--concurrency", type=_limit, metavar="N", help="Requests in progress at once.")
@click.option("--requests-per-minute", type=_limit, metavar="N", help="Requests within any minute.")
@click.option("--tokens-per-minute", type=_limit, metavar="N", help="Tokens within any minute, in and out.")
@click.option(
    "--priority-max",
    type=click.Choice([priority.value for priority in Priority], case_sensitive=False),
    help="The highest priority that it may ask for; Critical unless told.",
)
@click.option(
    "--data-class-max",
    type=click.Choice([known.value for known in DataClass], case_sensitive=False),
    help="The most restricted data that it may send; Restricted unless told.",
)
@click.option("--expires-in", type=DurationMs(), metavar="TIME", help="Such as 30d or 12h; without it never.")
@_common
def create(
    tools: Tools,
    /,
    name: str | None,
    aliases: tuple[str, ...],
    concurrency: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    priority_max: str | None,
    data_class_max: str | None,
    expires_in: int | None,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Make a key for inference. Its secret is shown this once. A limit that is not given is none."""
    document: dict[str, JsonValue] = {
        "name": name,
        "aliases": list(aliases),
        "concurrency": concurrency,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
        "expires_in_ms": expires_in,
    }
    document |= {} if priority_max is None else {"priority_max": priority_max}
    document |= {} if data_class_max is None else {"data_class_max": data_class_max}
    made, _ = ask_operator(tools, flags, config, lambda operator: operator.create_api_key(document))
    if output == JSON:
        print_json(made)
        return
    click.echo(made["secret"])
    write_note(f"{made['key']} is made. Keep the secret now: it can't be shown again.")


@command.command("list")
@_common
def list_keys(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """List the keys in force, with their limits and their use."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.api_keys)
    if output == JSON:
        print_json({"data": found})
    else:
        from lunanexa_apps.cli.key_page import keys_page
        from lunanexa_apps.cli.pages import page_console

        page_console().print(keys_page(found))


@command.command("show")
@_key_argument
@_common
def show(tools: Tools, /, key: str, config: str | None, output: str, **flags: str | None) -> None:
    """Show one key: its limits, what is left of them, and what was used."""
    found, _ = ask_operator(tools, flags, config, lambda operator: operator.api_key(key), listed_by="key list")
    if output == JSON:
        print_json(found)
    else:
        from lunanexa_apps.cli.key_page import key_page
        from lunanexa_apps.cli.pages import page_console

        page_console().print(key_page(found))


@command.command("revoke")
@_key_argument
@_common
def revoke(tools: Tools, /, key: str, config: str | None, output: str, **flags: str | None) -> None:
    """Revoke a key: its next request is refused, and what it has in progress ends."""
    answer, _ = ask_operator(tools, flags, config, lambda operator: operator.revoke_api_key(key), listed_by="key list")
    if output == JSON:
        print_json(answer)
    else:
        click.echo(f"{key} is revoked")
