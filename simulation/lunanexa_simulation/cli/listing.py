"""``lunanexa-sim list``: the scenarios."""

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_apps.codec import encode
from lunanexa_simulation.documents import ListDocument, ScenarioDocument
from lunanexa_simulation.planned import PLANNED
from lunanexa_simulation.scenarios import SCENARIOS


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are planned, and what each waits for.")
@output_option
def list_command(everything: bool, output: str) -> None:
    """Name the scenarios."""
    here = tuple(ScenarioDocument(name=one.name, summary=one.summary) for one in SCENARIOS.values())
    document = ListDocument(scenarios=(*here, *PLANNED) if everything else here)
    if output == JSON:
        click.echo(encode(document).decode())
        return
    for scenario in document.scenarios:
        waits = "" if scenario.waits_for is None else f" (planned: waits for {scenario.waits_for})"
        click.echo(f"{scenario.name:<20} {scenario.summary}{waits}")
