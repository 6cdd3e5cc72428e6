"""``lunanexa-node enroll``: makes this machine a node."""

import json

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, fail
from lunanexa_apps.node.air_gap.identity import refuse_air_gapped
from lunanexa_apps.node.cli.options import (
    EXIT_TRY_AGAIN,
    controller_option,
    data_address_option,
    data_dir_option,
    read_token,
    status_of,
    token_file_option,
    told_by,
)
from lunanexa_apps.node.cli.tools import NodeTools, admission_of
from lunanexa_apps.node.control import ControlChannel
from lunanexa_apps.node.enrolment import Admission, Admitted, Enroller, NotEnrolled
from lunanexa_apps.node.identity import NodeIdentity, read_identity
from lunanexa_apps.node.plan import Misfit, Told, plan_agent
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.node.trust import Trust
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_ports.errors import PortError, PortUnavailable
from lunanexa_ports.private_files import LockHeld

WAIT_MS = 30_000
"""So long at most the command waits where the controller says when to ask again."""


@click.command("enroll", short_help="Make this machine a node, by a token.")
@data_dir_option
@controller_option(required=True)
@token_file_option(required=True)
@data_address_option
@output_option
@click.pass_obj
def command(
    tools: NodeTools,
    data_dir: str,
    controllers: tuple[EngineAddress, ...],
    token_file: str,
    data_address: HostPort | str | None,
    output: str,
) -> None:
    """Enrol this machine as the node that the token names.

    The token's secret is sent only to a controller that proves to have the authority that the token names.
    """
    tools.start_logging("auto", False)
    try:
        file, token = read_token(tools, token_file, required=True)
        lock = tools.lock(data_dir)
        if isinstance(lock, LockHeld):
            fail(f"--data-dir: {lock.holder} runs on it", hint="stop it first", exit_code=EXIT_HELD)
        with lock:
            told = told_by(controllers, token, data_address, None)
            identity = tools.run(lambda: _enrol(tools, data_dir, told, file))
    except PortUnavailable as error:
        hint = "see that the controller runs with --node-listen there, and that no firewall is between"
        fail(str(error), hint=hint, exit_code=EXIT_UNAVAILABLE)
    except PortError as error:
        fail(str(error), exit_code=status_of(error))
    if isinstance(identity, Misfit):
        fail(f"{identity.field}: {identity.problem}", hint=identity.fix, exit_code=EXIT_CONFIG)
    if isinstance(identity, NotEnrolled):
        fail(identity.reason, hint=identity.fix, exit_code=EXIT_TRY_AGAIN)
    _say(identity, data_dir, output)


async def _enrol(
    tools: NodeTools, data_dir: str, told: Told, token_file: TokenFile | None
) -> NodeIdentity | NotEnrolled | Misfit:
    async with tools.open_ports(data_dir) as ports:
        await refuse_air_gapped(ports.store)
        plan = plan_agent(told, await read_identity(ports.store), tools.address_towards)
        if isinstance(plan, Misfit):
            return plan
        admission = admission_of(told, token_file, plan.data_address)
        assert isinstance(admission, Admission), "the token was read"
        settings = NodeSettings(
            node=plan.node, version=tools.version, controllers=plan.controllers, working_directory=data_dir
        )
        trust = Trust(ports.store, ports.verifier, ports.credentials, plan.node)
        await trust.load()
        control = ControlChannel(ports.control, ports.signer, settings)
        answer = await Enroller(ports, settings, trust, control).enrol_in_time(admission, WAIT_MS)
        if not isinstance(answer, Admitted):
            return answer
        admission.used()
        return answer.identity


def _say(identity: NodeIdentity, data_dir: str, output: str) -> None:
    authorities = [one.fingerprint for one in identity.trust.authorities]
    if output == JSON:
        document = {
            "node": identity.node,
            "cluster": identity.cluster,
            "authorities": authorities,
            "controllers": list(identity.controllers),
            "data_address": identity.data_address,
        }
        click.echo(json.dumps(document, indent=2))
        return
    click.echo(f"This machine is node {identity.node} of cluster {identity.cluster}.")
    click.echo(f"authority     {', '.join(authorities)}")
    click.echo(f"data address  {identity.data_address or 'none: engines are reached on this machine only'}")
    click.echo(f"\nnext: lunanexa-node run --data-dir {data_dir}")
