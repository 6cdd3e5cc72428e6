"""Options that several commands have."""

import os
import shlex
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from lunanexa_apps.cli.tools import EXIT_CONFIG, fail
from lunanexa_apps.settings import Flag, Loaded, SettingsError, flag_of, help_of, repeats
from lunanexa_apps.up.configuration import CommandSettings, load_command_settings

F = TypeVar("F", bound=Callable[..., Any])

TABLE = "table"
JSON = "json"
_PLACES = {"DIR": "dir", "FILE": "file", "PATH": "file"}
"""What a shell completes by itself, by the metavar that stands for it."""


def output_option(function: F) -> F:
    """``-o table|json``."""
    choices = click.Choice([TABLE, JSON])
    return click.option("-o", "--output", type=choices, default=TABLE, help="For people, or one JSON document.")(
        function
    )


def config_option(function: F) -> F:
    """``--config FILE``."""
    text = "Configuration file (TOML)."
    return click.option("--config", metavar="FILE", shell_complete=complete_place, help=text)(function)


def operator_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of every command that asks the operator plane; it gets its tools first."""
    metavar = {"data_dir": "DIR", "url": "URL", "token_file": "FILE"}
    options = setting_options("data_dir", "url", "token_file", metavar=metavar)
    return options(config_option(output_option(click.pass_obj(function))))


def complete_place(_: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Folders and files are the shell's to offer; of other values nothing is known."""
    place = _PLACES.get(str(option.metavar))
    return [] if place is None else [CompletionItem(incomplete, type=place)]


def setting_options(*names: str, metavar: Mapping[str, str] | None = None) -> Callable[[F], F]:
    """A flag for each of these settings. Values stay text: the loader checks them, whatever their source."""

    def add(function: F) -> F:
        for name in reversed(names):
            text = help_of(CommandSettings, name)
            option = click.option(
                flag_of(name),
                name,
                metavar=(metavar or {}).get(name, "VALUE"),
                multiple=repeats(CommandSettings, name),
                shell_complete=complete_place,
                help=text[0].upper() + text[1:] + ".",
            )
            function = option(function)
        return function

    return add


def settings_or_exit(
    flags: Mapping[str, Flag], config: str | None, *, checked: bool = False
) -> Loaded[CommandSettings]:
    """The settings, or the end of the program with every problem. ``checked``: this is the command that tells them."""
    try:
        return load_command_settings(flags, os.environ, config_path=config)
    except SettingsError as error:
        first, *others = error.problems
        named = "" if config is None else f" --config {shlex.quote(config)}"
        hint = None if checked else f"lunanexa check-config{named} tells all of it"
        if not checked and all("(from --" in problem for problem in error.problems):
            hint = f"{click.get_current_context().command_path} --help tells what each flag takes"
        fail(first, details=tuple(others), hint=hint, exit_code=EXIT_CONFIG)
