"""``lunanexa explain WORKLOAD``: why a request went where it went."""

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.complete import complete_workloads
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.tools import Tools
from lunanexa_core.ids import is_identifier


def _identifier(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no workload's identifier; lunanexa requests shows them")
    return value


@click.command("explain")
@click.argument("workload", callback=_identifier, shell_complete=complete_workloads)
@setting_options("data_dir", "url", "token_file", metavar={"data_dir": "DIR", "url": "URL", "token_file": "FILE"})
@config_option
@output_option
@click.pass_obj
def command(tools: Tools, /, workload: str, config: str | None, output: str, **flags: str | None) -> None:
    """Tell why a request went where it went: every replica with every term of the decision, the attempts, the end.

    WORKLOAD is the answer's header x-lunanexa-workload-id; `lunanexa requests` lists the last ones.
    """
    document, _ = ask_operator(tools, flags, config, lambda operator: operator.explain(workload), listed_by="requests")
    if output == JSON:
        print_json(document)
        return
    from lunanexa_apps.cli.pages import page_console
    from lunanexa_apps.cli.request_pages import explanation_page

    page_console().print(explanation_page(document))
