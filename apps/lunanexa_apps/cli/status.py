"""``lunanexa status``: one page of everything, from the operator plane."""

import json
from functools import partial
from typing import Any

import click
import trio

from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options, settings_or_exit
from lunanexa_apps.cli.target import Target, fail_refused, fail_unreachable, find_target
from lunanexa_apps.cli.tools import Tools
from lunanexa_apps.up.plane import PlaneRefusal
from lunanexa_ports.errors import PortError


@click.command("status")
@setting_options("data_dir", "url", "token_file", metavar={"data_dir": "DIR", "url": "URL", "token_file": "FILE"})
@config_option
@output_option
@click.pass_obj
def command(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """Show nodes, deployments and their replicas, queues, usage and the last requests.

    It asks the controller of this machine (its data directory is known), or the one that LUNANEXA_URL names,
    with the operator token in LUNANEXA_TOKEN.
    """
    target = find_target(tools, settings_or_exit(flags, config))
    answer = tools.run(partial(_ask, tools, target))
    match answer:
        case PlaneRefusal():
            fail_refused(target, answer, token_name="the operator token")
        case PortError():
            fail_unreachable(target, answer)
        case _ if output == JSON:
            click.echo(json.dumps(answer, indent=2, ensure_ascii=False))
        case _:
            from lunanexa_apps.cli.pages import page_console
            from lunanexa_apps.cli.status_page import status_page

            page_console().print(status_page(answer, target.url))


async def _ask(tools: Tools, target: Target) -> Any:
    http = tools.make_http()
    try:
        return await target.operator_plane(http).ask("GET", "/admin/v1/status")
    except PortError as error:
        return error
    finally:
        with trio.move_on_after(1, shield=True):
            await http.aclose()
