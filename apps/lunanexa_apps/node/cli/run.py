"""``lunanexa-node run``: the agent itself, for good or for one round."""

import json

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, fail
from lunanexa_apps.codec import unstructure
from lunanexa_apps.daemon import leaves
from lunanexa_apps.node.air_gap.identity import refuse_air_gapped
from lunanexa_apps.node.cli.options import (
    air_gapped_option,
    controller_option,
    data_address_option,
    data_dir_option,
    data_listen_option,
    logging_options,
    media_options,
    policy_option,
    read_policy,
    read_token,
    token_file_option,
    told_by,
)
from lunanexa_apps.node.cli.tools import NodeTools, RunOrder, admission_of
from lunanexa_apps.node.cli.whom import air_gap_places
from lunanexa_apps.node.identity import read_identity
from lunanexa_apps.node.once import Round, run_node_once
from lunanexa_apps.node.plan import Misfit, plan_agent
from lunanexa_apps.node.settings import HEARTBEAT_MS, NodeSettings
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.private_files import LockHeld

ROUND_S = 120


@click.command("run", short_help="Follow the controller.")
@data_dir_option
@controller_option(required=False)
@token_file_option(required=False)
@data_address_option
@data_listen_option
@policy_option
@air_gapped_option
@media_options
@click.option("--once", is_flag=True, help="One round: report, take the newest document, make it true, go.")
@click.option(
    "--timeout", "limit_s", type=click.IntRange(1), default=ROUND_S, metavar="S", help=f"Of --once: default {ROUND_S}."
)
@click.option(
    "--heartbeat-ms",
    type=click.IntRange(100, 60_000),
    default=HEARTBEAT_MS,
    metavar="MS",
    help=f"How often it reports: default {HEARTBEAT_MS}.",
)
@output_option
@logging_options
@click.pass_obj
def command(
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
    once: bool,
    limit_s: int,
    heartbeat_ms: int,
    output: str,
    log_format: str,
    verbose: bool,
) -> None:
    """Follow the controller: make its document true with engines on this machine, and report what is.

    A node that is not enrolled yet enrols itself by --token-file. The first SIGTERM or SIGINT stops the engines and
    then ends the agent; the second leaves out drain and grace. Engines outlive an agent that is killed, and one round.
    """
    file, token = read_token(tools, token_file, required=False)
    told = told_by(controllers, token, data_address, data_listen)
    air_gap = air_gap_places(tools, policy_file, told, air_gapped=air_gapped, inbox=inbox, outbox=outbox)
    if air_gap is not None and once:
        raise click.UsageError("--once is not for --air-gapped.")
    order = RunOrder(
        data_dir=data_dir,
        told=told,
        token_file=file,
        policy=read_policy(tools, policy_file).rules,
        heartbeat_ms=heartbeat_ms,
        log_format=log_format,
        verbose=verbose,
        air_gap=air_gap,
    )
    raise SystemExit(_run_once(tools, order, limit_s, output) if once else tools.serve(order))


def _run_once(tools: NodeTools, order: RunOrder, limit_s: int, output: str) -> int:
    tools.start_logging(order.log_format, order.verbose)
    faults: list[PortError] = []
    found: Round | Misfit | None = None
    try:
        lock = tools.lock(order.data_dir)
        if isinstance(lock, LockHeld):
            fail(f"--data-dir: {lock.holder} runs on it", hint="it does what --once would", exit_code=EXIT_HELD)
        with lock:
            found = tools.run(lambda: _round(tools, order, limit_s))
    except* PortError as group:
        faults = [error for error in leaves(group) if isinstance(error, PortError)]
    if found is None:
        hint = "lunanexa-node doctor tells what is in the way"
        fault = next((one for one in faults if isinstance(one, PortFault)), faults[0])
        fail(str(fault), hint=hint, exit_code=EXIT_CONFIG if isinstance(fault, PortFault) else EXIT_UNAVAILABLE)
    if isinstance(found, Misfit):
        fail(f"{found.field}: {found.problem}", hint=found.fix, exit_code=EXIT_CONFIG)
    if output == JSON:
        click.echo(json.dumps(unstructure(found), indent=2))
    else:
        from lunanexa_apps.cli.pages import page_console
        from lunanexa_apps.node.cli.pages import round_page

        page_console().print(round_page(found))
    if found.refusal is not None:
        return EXIT_UNAVAILABLE
    return 0 if found.well else 1


async def _round(tools: NodeTools, order: RunOrder, limit_s: int) -> Round | Misfit:
    async with tools.open_ports(order.data_dir) as ports:
        await refuse_air_gapped(ports.store)
        plan = plan_agent(order.told, await read_identity(ports.store), tools.address_towards)
        if isinstance(plan, Misfit):
            return plan
        settings = NodeSettings(
            node=plan.node,
            version=tools.version,
            controllers=plan.controllers,
            working_directory=order.data_dir,
            policy=order.policy,
            heartbeat_ms=order.heartbeat_ms,
        )
        admission = admission_of(order.told, order.token_file, plan.data_address)
        return await run_node_once(ports, settings, admission=admission, limit_s=limit_s)
