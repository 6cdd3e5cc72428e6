"""``lunanexa version``."""

import json
import platform
from importlib.metadata import version

import click

from lunanexa_apps.cli.options import JSON, output_option


@click.command("version")
@output_option
def command(output: str) -> None:
    """Show the version of LunaNexa and of the Python that runs it."""
    found = {"lunanexa": version("lunanexa"), "python": platform.python_version()}
    if output == JSON:
        click.echo(json.dumps(found))
    else:
        click.echo(f"lunanexa {found['lunanexa']} (Python {found['python']})")
