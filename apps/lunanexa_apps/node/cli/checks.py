"""``lunanexa-node check-config`` and ``doctor``: what is, and why it is not well."""

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_apps.cli.tools import EXIT_CONFIG
from lunanexa_apps.node.air_gap.identity import AIR_GAP
from lunanexa_apps.node.air_gap.places import look_at_places
from lunanexa_apps.node.check_config import check_config
from lunanexa_apps.node.cli.options import (
    air_gapped_option,
    controller_option,
    data_address_option,
    data_dir_option,
    data_listen_option,
    media_options,
    policy_option,
    token_file_option,
    told_by,
)
from lunanexa_apps.node.cli.tools import NodeTools
from lunanexa_apps.node.cli.whom import AUTHORITY_TOO, WHICH_OF_BOTH, check_whom
from lunanexa_apps.node.doctor import ENROLMENT, examine
from lunanexa_apps.node.findings import Finding, any_problem, document_of, problem
from lunanexa_apps.node.plan import Told
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.errors import PortError

OF_AIR_GAPPED: Final = "it is for an air-gapped node (lunanexa-node init --air-gapped), and this is none"
OF_FOLLOWER: Final = "it is for a node that follows controllers, and this one is air-gapped: it dials and serves nobody"


@click.command("check-config", short_help="Check the settings for `run`, and change nothing.")
@data_dir_option
@controller_option(required=False)
@token_file_option(required=False)
@data_address_option
@data_listen_option
@policy_option
@air_gapped_option
@media_options
@output_option
@click.pass_obj
def check_config_command(
    tools: NodeTools,
    data_dir: str,
    controllers: tuple[EngineAddress, ...],
    token_file: str | None,
    data_address: HostPort | str | None,
    data_listen: HostPort | str | None,
    policy_file: str | None,
    air_gapped: bool,
    inbox: str | None,
    outbox: str | None,
    output: str,
) -> None:
    """Check settings, files, rights, addresses and ports for `run` with the same options.

    Starts nothing, changes nothing and asks no controller.
    """
    told = told_by(controllers, None, data_address, data_listen)
    file = None if token_file is None else tools.token_file(token_file)
    check_whom(told if file is None else None, air_gapped=air_gapped, inbox=inbox, outbox=outbox)
    findings = _looked(tools, lambda: _check(tools, data_dir, told, file, air_gapped=air_gapped))
    findings += _policy(tools, policy_file, inbox, outbox, air_gapped=air_gapped)
    _show(findings, output)
    raise SystemExit(EXIT_CONFIG if any_problem(findings) else 0)


async def _check(
    tools: NodeTools, data_dir: str, told: Told, file: TokenFile | None, *, air_gapped: bool
) -> list[Finding]:
    async with tools.look(data_dir) as (folder, _):
        return await check_config(
            folder,
            told,
            file,
            air_gapped=air_gapped,
            address_towards=tools.address_towards,
            why_not_listen=tools.why_not_listen,
        )


@click.command("doctor", short_help="Look at all that this node needs, step by step.")
@data_dir_option
@controller_option(required=False)
@data_listen_option
@policy_option
@media_options
@output_option
@click.pass_obj
def doctor_command(
    tools: NodeTools,
    data_dir: str,
    controllers: tuple[EngineAddress, ...],
    data_listen: HostPort | str | None,
    policy_file: str | None,
    inbox: str | None,
    outbox: str | None,
    output: str,
) -> None:
    """Look at all that this node needs, one step after another, and tell why what is not well isn't.

    May be asked while the agent runs. Exit status 1: there is a problem.
    """
    told = told_by(controllers, None, None, data_listen)
    findings = _looked(tools, lambda: _examine(tools, data_dir, told))
    air_gapped = any(one.step == AIR_GAP for one in findings)
    if any(one.step == ENROLMENT for one in findings):
        findings += _misplaced({"--inbox": inbox, "--outbox": outbox}, OF_AIR_GAPPED)
    elif air_gapped:
        findings += _misplaced({"--controller": controllers or None, "--data-listen": data_listen}, OF_FOLLOWER)
    findings += _policy(tools, policy_file, inbox, outbox, air_gapped=air_gapped)
    _show(findings, output)
    raise SystemExit(1 if any_problem(findings) else 0)


async def _examine(tools: NodeTools, data_dir: str, told: Told) -> list[Finding]:
    async with tools.look(data_dir) as (folder, instruments):
        return await examine(folder, told, instruments, tools.version)


def _misplaced(options: Mapping[str, object], why: str) -> list[Finding]:
    """A finding for each that was given, and can mean nothing of such a node."""
    fix = "leave it out, or name the directory of the other node: --data-dir DIR"
    return [problem(name, why, fix) for name, value in options.items() if value is not None]


def _looked(tools: NodeTools, look: Callable[[], Awaitable[list[Finding]]]) -> list[Finding]:
    try:
        return tools.run(look)
    except PortError as error:
        return [
            problem(
                "data directory",
                str(error),
                "mend what it names, or put it back from a backup; the other steps need it",
            )
        ]


def _policy(
    tools: NodeTools, path: str | None, inbox: str | None, outbox: str | None, *, air_gapped: bool
) -> list[Finding]:
    try:
        policy = tools.read_policy(path)
    except PortError as error:
        return [problem("policy", str(error), "mend what it names; the agent does not start with it")]
    if air_gapped:
        return [*look_at_places(policy, inbox, outbox, tools.places), policy.describe()]
    if policy.rules.authority is not None:
        return [problem("policy", f"{policy.place}: {AUTHORITY_TOO}", WHICH_OF_BOTH)]
    return [policy.describe()]


def _show(findings: Sequence[Finding], output: str) -> None:
    if output == JSON:
        click.echo(json.dumps(document_of(findings), indent=2))
        return
    from lunanexa_apps.cli.pages import page_console
    from lunanexa_apps.node.cli.pages import findings_page

    page_console().print(findings_page(findings))
