"""``lunanexa status``: one page of everything, from the operator plane."""

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.tools import Tools
from lunanexa_client import AsyncOperator


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
    document, target = ask_operator(tools, flags, config, AsyncOperator.status)
    if output == JSON:
        print_json(document)
        return
    from lunanexa_apps.cli.pages import page_console
    from lunanexa_apps.cli.status_page import status_page

    page_console().print(status_page(document, target.url))
