"""``lunanexa check-config``: the settings in force, and where each comes from."""

import enum
import json
import shlex

import attrs
import click

from lunanexa_apps.cli.options import JSON, config_option, output_option, settings_or_exit
from lunanexa_apps.setting_kinds import HostPort, Secret, StoreUrl
from lunanexa_apps.settings import Loaded
from lunanexa_apps.up.configuration import CommandSettings


@click.command("check-config")
@config_option
@output_option
def command(config: str | None, output: str) -> None:
    """Check the configuration, and show every setting with its value and source.

    The order is: flag, LUNANEXA_* variable, configuration file, default. Secrets are hidden.
    """
    loaded = settings_or_exit({}, config, checked=True)
    if output == JSON:
        click.echo(json.dumps(effective(loaded), indent=2))
        return
    from rich.text import Text

    from lunanexa_apps.cli.cells import cell, table
    from lunanexa_apps.cli.pages import page_console

    page = table("SETTING", "VALUE", "SOURCE")
    for name, entry in effective(loaded).items():
        page.add_row(Text(name), cell(entry["value"]), cell(entry["source"]))
    page_console().print(page)


def effective(loaded: Loaded[CommandSettings]) -> dict[str, dict[str, object]]:
    """Every setting's value and source, as JSON has them."""
    values = attrs.asdict(loaded.settings, recurse=False)
    return {
        name: {"value": _plain(value), "source": loaded.sources[name].name, "kind": loaded.sources[name].kind.value}
        for name, value in values.items()
    }


def _plain(value: object) -> object:
    match value:
        case enum.Enum():
            return value.value
        case HostPort() | Secret() | StoreUrl():
            return str(value)
        case tuple():
            return shlex.join(value) or None
        case _:
            return value
