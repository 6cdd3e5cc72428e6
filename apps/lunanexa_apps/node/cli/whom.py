"""Whom ``lunanexa-node run`` follows: controllers, or the authority in the owner's policy. Never both."""

import click

from lunanexa_apps.cli.tools import EXIT_CONFIG, fail
from lunanexa_apps.node.cli.options import read_policy
from lunanexa_apps.node.cli.tools import AirGapPlaces, NodeTools
from lunanexa_apps.node.plan import Told

COUNTER_SUFFIX = ".counter"


def air_gap_places(
    tools: NodeTools, policy_file: str | None, told: Told, *, air_gapped: bool, inbox: str | None, outbox: str | None
) -> AirGapPlaces | None:
    """``None``: controllers. Ends the program where options and policy contradict each other."""
    authority = read_policy(tools, policy_file).authority
    if not air_gapped:
        if inbox is not None or outbox is not None:
            raise click.UsageError("--inbox and --outbox are for --air-gapped.")
        if authority is not None:
            fail(
                "--policy: it names an authority, and a node follows either an authority or a controller",
                hint="run it with --air-gapped, or take authority out of the policy",
                exit_code=EXIT_CONFIG,
            )
        return None
    if inbox is None or outbox is None:
        raise click.UsageError("--air-gapped needs --inbox DIR and --outbox DIR.")
    if told != Told():
        raise click.UsageError("--air-gapped follows no controller and listens for nobody: leave their options out.")
    if authority is None:
        fail(
            "--policy: it names no authority, so that no bundle could be believed",
            hint='write authority = "…" into it, as make-bundle shows it',
            exit_code=EXIT_CONFIG,
        )
    return AirGapPlaces(inbox=inbox, outbox=outbox, counter=tools.read_policy(policy_file).place + COUNTER_SUFFIX)
