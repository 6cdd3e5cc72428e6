"""``lunanexa requests``: what is in progress, and what ended last."""

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.tools import Tools


@click.command("requests")
@click.option("--limit", type=click.IntRange(1, 500), default=20, show_default=True, help="The newest N of each.")
@setting_options("data_dir", "url", "token_file", metavar={"data_dir": "DIR", "url": "URL", "token_file": "FILE"})
@config_option
@output_option
@click.pass_obj
def command(tools: Tools, /, limit: int, config: str | None, output: str, **flags: str | None) -> None:
    """List the requests of all keys: in progress, then the last that ended.

    `lunanexa explain WORKLOAD` tells of one of them why it went where it went.
    """
    document, _ = ask_operator(tools, flags, config, lambda operator: operator.requests(limit=limit))
    if output == JSON:
        print_json(document)
        return
    from lunanexa_apps.cli.pages import page_console
    from lunanexa_apps.cli.request_pages import requests_page

    page_console().print(requests_page(document))
