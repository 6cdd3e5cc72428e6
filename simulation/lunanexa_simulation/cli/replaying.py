"""``lunanexa-sim replay``: a run that stops at an instant, and the world as it stands then."""

import click

from lunanexa_simulation.cli.live import run_board
from lunanexa_simulation.cli.told import failure_lines
from lunanexa_simulation.cli.tools import (
    STDOUT,
    Tools,
    faults_ms_of,
    json_option,
    minutes_option,
    only_option,
    scenario_option,
    seed_option,
    tell,
)
from lunanexa_simulation.documents import ReplayDocument, StateDocument
from lunanexa_simulation.picture import picture_of, picture_of_site
from lunanexa_simulation.results import run_document
from lunanexa_simulation.run import Manner
from lunanexa_simulation.scenarios import SCENARIOS
from lunanexa_simulation.site import Site
from lunanexa_simulation.world import World


@click.command("replay", short_help="Run a seed up to an instant, and show how the world stands.")
@scenario_option
@seed_option
@click.option(
    "--until",
    "until_ms",
    type=click.IntRange(min=0),
    required=True,
    metavar="MS",
    help="Stop at this virtual millisecond.",
)
@minutes_option
@only_option
@json_option
@click.pass_obj
def replay_command(
    tools: Tools,
    scenario: str,
    seed: int,
    until_ms: int,
    minutes: float | None,
    only: frozenset[int] | None,
    json_path: str | None,
) -> int:
    """Run a seed up to an instant, and show how the world stands then."""
    worlds: list[World] = []
    sites: list[Site] = []
    picture: list[StateDocument] = []
    faults_ms = faults_ms_of(scenario, minutes)
    with run_board(f"{scenario} seed {seed}", quiet=json_path == STDOUT) as board:

        def attend(world: World) -> None:
            worlds.append(world)
            board(world)

        def at_stop() -> None:
            if worlds:
                picture.extend(picture_of(worlds[-1]))
            elif sites:
                picture.extend(picture_of_site(sites[-1]))

        manner = Manner(
            attend=attend,
            attend_site=sites.append,
            until_ms=until_ms,
            at_stop=at_stop,
            only=only,
            faults_ms=faults_ms,
        )
        result = SCENARIOS[scenario].run(seed, manner)
    run = run_document(scenario, result, tools.commit())
    document = ReplayDocument(until_ms=until_ms, run=run, state=tuple(picture))
    tell(document, json_path, lambda: _lines(document, only))
    return run.exit_code


def _lines(document: ReplayDocument, only: frozenset[int] | None) -> list[str]:
    run = document.run
    if run.exit_code:
        return failure_lines(run, only=only)
    if not document.state:
        return [f"{run.scenario} seed {run.seed} was over after {run.virtual_ms} virtual ms"]
    lines = [f"{run.scenario} seed {run.seed}, stopped at {document.until_ms} virtual ms"]
    for part in document.state:
        lines += ["", f"{part.about}:", *(f"  {line}" for line in part.lines or ("none",))]
    return lines
