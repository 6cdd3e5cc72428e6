"""Whom ``lunanexa-node run`` follows: controllers, or the authority in the owner's policy. Never both."""

import click

from lunanexa_apps.cli.tools import EXIT_CONFIG, fail
from lunanexa_apps.node.air_gap.places import COUNTER_SUFFIX
from lunanexa_apps.node.cli.options import read_policy
from lunanexa_apps.node.cli.tools import AirGapPlaces, NodeTools
from lunanexa_apps.node.plan import Told

AUTHORITY_TOO = "it names an authority, and a node follows either an authority or a controller"
WHICH_OF_BOTH = "run it with --air-gapped, or take authority out of the policy"


def check_whom(told: Told | None, *, air_gapped: bool, inbox: str | None, outbox: str | None) -> None:
    """Ends the program where the options contradict each other. ``told`` of controllers is ``None`` with a token."""
    if not air_gapped:
        if inbox is not None or outbox is not None:
            raise click.UsageError("--inbox and --outbox are for --air-gapped.")
        return
    if inbox is None or outbox is None:
        raise click.UsageError("--air-gapped needs --inbox DIR and --outbox DIR.")
    if told != Told():
        raise click.UsageError("--air-gapped follows no controller and listens for nobody: leave their options out.")


def air_gap_places(
    tools: NodeTools, policy_file: str | None, told: Told, *, air_gapped: bool, inbox: str | None, outbox: str | None
) -> AirGapPlaces | None:
    """``None``: controllers. Ends the program where options and policy contradict each other."""
    check_whom(told, air_gapped=air_gapped, inbox=inbox, outbox=outbox)
    policy = read_policy(tools, policy_file)
    if inbox is None or outbox is None:
        if policy.rules.authority is not None:
            fail(f"--policy: {AUTHORITY_TOO}", hint=WHICH_OF_BOTH, exit_code=EXIT_CONFIG)
        return None
    if policy.rules.authority is None:
        fail(
            "--policy: it names no authority, so that no bundle could be believed",
            hint='write authority = "…" into it, as make-bundle shows it',
            exit_code=EXIT_CONFIG,
        )
    return AirGapPlaces(inbox=inbox, outbox=outbox, counter=policy.place + COUNTER_SUFFIX)
