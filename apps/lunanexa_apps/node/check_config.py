"""Whether an agent could run as it is told to: settings, files, rights, addresses and ports. Nothing is started, made
or asked of others."""

from collections.abc import Callable

import attrs

from lunanexa_apps.node.air_gap.identity import describe_kind
from lunanexa_apps.node.findings import Finding, note, problem
from lunanexa_apps.node.folder import NodeFolder
from lunanexa_apps.node.identity import NodeIdentity, read_identity
from lunanexa_apps.node.plan import AgentPlan, Misfit, Told, plan_agent
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.token import EnrolmentToken
from lunanexa_core.southbound.controllers import controller_url
from lunanexa_ports.errors import PortError


async def check_config(
    folder: NodeFolder,
    told: Told,
    token_file: TokenFile | None,
    *,
    air_gapped: bool = False,
    address_towards: Callable[[EngineAddress], str | None],
    why_not_listen: Callable[[HostPort], str | None],
) -> list[Finding]:
    """One finding a setting; ``told`` is without its token, which is read here. Of an air-gapped node only what lies
    in its directory is looked at."""
    findings = [folder.describe()]
    identity: NodeIdentity | None = None
    try:
        kind = await describe_kind(folder.store, folder.place, air_gapped=air_gapped)
        if kind is not None:
            return [*findings, kind]
        identity = None if folder.store is None else await read_identity(folder.store)
        folder.way()  # An agent starts only where what it would show controllers can be read.
        findings.append(_enrolment(identity))
    except PortError as error:
        return [*findings, problem("enrolment", str(error), "see what it names")]
    token: EnrolmentToken | None = None
    try:
        token = None if token_file is None else token_file.read()
        findings += _token(token_file, token)
    except PortError as error:
        return [*findings, problem("--token-file", str(error), "see what it names")]
    plan = plan_agent(attrs.evolve(told, token=token), identity, address_towards)
    if isinstance(plan, Misfit):
        return [*findings, problem(plan.field, plan.problem, plan.fix)]
    return [*findings, *_plan(plan), _listen(plan, why_not_listen, runs=folder.runs)]


def _enrolment(identity: NodeIdentity | None) -> Finding:
    if identity is None:
        return note("enrolment", "this node is not enrolled")
    return Finding(step="enrolment", found=f"node {identity.node} of cluster {identity.cluster}")


def _token(file: TokenFile | None, token: EnrolmentToken | None) -> list[Finding]:
    if file is None:
        return []
    found = "there is no such file; it is not needed by a node that is enrolled"
    if token is not None:
        found = f"a token for node {token.node}"
    return [note("--token-file", f"{file.place}: {found}")]


def _plan(plan: AgentPlan) -> list[Finding]:
    address = "none: engines are reached on this machine only" if plan.data_address is None else str(plan.data_address)
    return [
        Finding(step="node", found=plan.node),
        Finding(step="controllers", found=", ".join(map(controller_url, plan.controllers))),
        Finding(step="data address", found=address),
    ]


def _listen(plan: AgentPlan, why_not_listen: Callable[[HostPort], str | None], *, runs: bool) -> Finding:
    if plan.data_listen is None:
        return Finding(step="data listener", found="none")
    place = str(plan.data_listen)
    if runs:
        return Finding(step="data listener", found=f"{place}, of the agent that runs")
    reason = why_not_listen(plan.data_listen)
    if reason is None:
        return Finding(step="data listener", found=f"{place} can be had")
    return problem("data listener", f"{place} can't be had: {reason}", "name another with --data-listen HOST:PORT")
