"""``lunanexa-sim list``: the scenarios."""

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_simulation.cli.tools import STDOUT, json_option, tell
from lunanexa_simulation.documents import ListDocument, ScenarioDocument
from lunanexa_simulation.planned import PLANNED
from lunanexa_simulation.scenarios import SCENARIOS


@click.command("list")
@click.option("--all", "everything", is_flag=True, help="Also those that are planned, and what each waits for.")
@output_option
@json_option
def list_command(everything: bool, output: str, json_path: str | None) -> None:
    """Name the scenarios."""
    here = tuple(ScenarioDocument(name=one.name, summary=one.summary) for one in SCENARIOS.values())
    document = ListDocument(scenarios=(*here, *PLANNED) if everything else here)
    tell(document, STDOUT if output == JSON else json_path, lambda: _lines(document))


def _lines(document: ListDocument) -> list[str]:
    lines = []
    for scenario in document.scenarios:
        waits = "" if scenario.waits_for is None else f" (planned: waits for {scenario.waits_for})"
        lines.append(f"{scenario.name:<20} {scenario.summary}{waits}")
    return lines
