"""Each thing that a node needs, looked at once: what is found, and why it is not well where it isn't."""

import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import attrs
import trio

from lunanexa_apps.node.air_gap.identity import read_air_gapped
from lunanexa_apps.node.control import ControlChannel, ControlRefusal
from lunanexa_apps.node.findings import Finding, note, problem
from lunanexa_apps.node.folder import NodeFolder
from lunanexa_apps.node.identity import NodeIdentity, read_identity
from lunanexa_apps.node.plan import AgentPlan, Misfit, Told, plan_agent
from lunanexa_apps.node.settings import NodeSettings
from lunanexa_apps.node.started import Started, as_it_was_told, read_start
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.identity.certificate import PeerCertificate
from lunanexa_core.southbound.controllers import controller_url
from lunanexa_ports.clock import Clock
from lunanexa_ports.credentials import Credentials
from lunanexa_ports.errors import PortError
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.memory import Memory
from lunanexa_ports.signing import Signer

ENROLMENT: Final = "enrolment"
"""The step that tells whose the node is, where it follows controllers."""
UNREADABLE: Final = (
    "mend what it names; else put it back from a backup, or move it away and enrol this node anew with a token"
    " (lunanexa node token NAME --again --out FILE)"
)
LEAST_FREE_MIB = 1_024
_ASK_S = 20.0
_NEVER = (999_999_999, 0)


@attrs.frozen(kw_only=True)
class Instruments:
    """What the doctor looks with."""

    clock: Clock
    memory: Memory
    signer: Signer | None
    """The node's; it is not needed for questions that carry no document."""
    find_devices: Callable[[], Sequence[str] | str]
    address_towards: Callable[[EngineAddress], str | None]
    why_not_listen: Callable[[HostPort], str | None]


async def examine(folder: NodeFolder, told: Told, with_: Instruments, version: str) -> list[Finding]:
    """All steps, in order; one that fails stops no other."""
    machine = [_memory(with_.memory), _devices(with_.find_devices()), _disk(folder), folder.describe()]
    try:
        gap = None if folder.store is None else await read_air_gapped(folder.store)
        if gap is not None:
            return [_clock(None, with_.clock), *machine, gap.describe()]
        identity, way = None if folder.store is None else await read_identity(folder.store), folder.way()
        started = None if folder.store is None else await read_start(folder.store, folder.holder)
    except PortError as error:
        return [_clock(None, with_.clock), *machine, problem(ENROLMENT, str(error), UNREADABLE)]
    findings = [_clock(way.credentials.certificate, with_.clock), *machine]
    findings += _identity(way.credentials, identity, with_.clock)
    if identity is None:
        return findings
    plan = plan_agent(as_it_was_told(told, started), identity, with_.address_towards)
    if isinstance(plan, Misfit):
        return [*findings, problem(plan.field, plan.problem, plan.fix)]
    findings.append(_listener(plan, folder, started, with_.why_not_listen))
    findings += await _controllers(plan, identity, way.control, with_, _controller_fix(folder), version)
    return [*findings, _lease(folder, plan)]


def _clock(certificate: PeerCertificate | None, clock: Clock) -> Finding:
    wall_ms = clock.now().wall_ms
    shown = _time(wall_ms // 1_000)
    if certificate is not None and wall_ms < certificate.not_before_s * 1_000:
        return problem("clock", f"{shown} is before this node's certificate was issued", "set this machine's clock")
    return Finding(step="clock", found=shown)


def _memory(memory: Memory) -> Finding:
    reading = memory.read()
    if reading is None:
        return problem("memory", "/proc/meminfo can't be read", "see that /proc is mounted")
    return Finding(step="memory", found=f"{reading.available_mib} MiB of {reading.total_mib} MiB are available")


def _devices(found: Sequence[str] | str) -> Finding:
    if isinstance(found, str):
        return note("devices", found)
    return Finding(step="devices", found=", ".join(found) or "NVML finds none")


def _disk(folder: NodeFolder) -> Finding:
    if folder.free_mib is None:
        return note("disk", f"{folder.place} can't be measured")
    found = f"{folder.free_mib} MiB are free at {folder.place}"
    if folder.free_mib < LEAST_FREE_MIB:
        return problem("disk", found, f"make room: below {LEAST_FREE_MIB} MiB the node's store may fail to write")
    return Finding(step="disk", found=found)


def _identity(credentials: Credentials, identity: NodeIdentity | None, clock: Clock) -> list[Finding]:
    if identity is None:
        fix = (
            "have a token minted (lunanexa node token NAME --out FILE), then lunanexa-node enroll; or name the"
            " directory of a node that is enrolled: --data-dir DIR"
        )
        return [problem(ENROLMENT, "this node is not enrolled", fix)]
    certificate, trusted = credentials.certificate, credentials.trusted
    findings = [Finding(step=ENROLMENT, found=f"node {identity.node} of cluster {identity.cluster}")]
    if trusted:
        stage = f"trust set {identity.trust.version}, {identity.trust.stage.value}"
        findings.append(Finding(step="authority", found=f"{', '.join(trusted)} ({stage})"))
    else:
        findings.append(problem("authority", "no authority is trusted", "enrol this node anew with a token"))
    if certificate is None:
        fix = "a running agent gets a new one by its signing key; start it"
        return [*findings, problem("certificate", "there is none", fix)]
    until = f"{certificate.identity}, serial {certificate.serial}, until {_time(certificate.not_after_s)}"
    if certificate.expired(clock.now().wall_ms):
        fix = "a running agent renews it by its signing key; see its log for why it did not"
        return [*findings, problem("certificate", f"{until}: it has expired", fix)]
    return [*findings, Finding(step="certificate", found=until)]


def _listener(
    plan: AgentPlan, folder: NodeFolder, started: Started | None, why_not_listen: Callable[[HostPort], str | None]
) -> Finding:
    if folder.runs and started is not None and started.data_listen != plan.listen_word:
        told = f"listen at {started.data_listen}" if started.data_listen else "have none"
        fix = "leave --data-listen out, or start the agent anew with it"
        return problem(
            "data listener",
            f"the agent that runs was told to {told}, and not {plan.listen_word or 'to have none'}",
            fix,
        )
    if plan.data_listen is None:
        return note("data listener", "none: engines are reached on this machine only")
    reason, place = why_not_listen(plan.data_listen), f"{plan.data_listen}, reached at {plan.data_address}"
    if folder.runs:
        return _open_listener(place, began=started is not None, free=reason is None)
    if reason is not None:
        return problem("data listener", f"{place}: {reason}", "name another with --data-listen HOST:PORT")
    return Finding(step="data listener", found=f"{place}: free")


def _open_listener(place: str, *, began: bool, free: bool) -> Finding:
    """Of a directory that somebody runs on; ``began``: an agent, which serves."""
    if not free:
        return Finding(step="data listener", found=f"{place}: taken, as it must be while the agent runs")
    if not began:
        fix = "ask again in a moment: an agent that starts listens soon; enroll and run --once never do"
        return note("data listener", f"nobody listens at {place}", fix)
    return problem("data listener", f"nobody listens at {place}", "see the agent's log: it runs, and does not listen")


def _controller_fix(folder: NodeFolder) -> str:
    """What mends a controller that can't be reached."""
    if not folder.of_up:
        return "see that a controller of its cluster runs with --node-listen there, and that no firewall is between"
    place = shlex.quote(folder.place)
    if not folder.runs:
        return f"start both, this node and its controller: lunanexa up --data-dir {place}"
    return f"lunanexa status --data-dir {place} tells of the controller that lunanexa up runs beside this node"


async def _controllers(
    plan: AgentPlan, identity: NodeIdentity, control: HttpClient, with_: Instruments, fix: str, version: str
) -> list[Finding]:
    """``fix``: what mends one that can't be reached."""
    signer = with_.signer
    if signer is None:
        anew = "copy it back from a backup, or enrol this node anew with a token"
        return [problem("signing key", "there is no secrets/node.key", anew)]
    findings = []
    for address in plan.controllers:
        settings = NodeSettings(node=identity.node, version=version, controllers=(address,), working_directory="/")
        channel = ControlChannel(control, signer, settings, told_only=True)
        channel.cluster = identity.cluster
        findings.append(await _ask(channel, controller_url(address), identity, fix))
    return findings


async def _ask(channel: ControlChannel, url: str, identity: NodeIdentity, fix: str) -> Finding:
    """With the node's certificate, so that connection, both certificates and the answer are proven at once."""
    answer = None
    try:
        with trio.fail_after(_ASK_S):
            answer = await channel.desired(_NEVER, wait_ms=0)
    except PortError as error:
        # The client names the place too.
        said = str(error).removeprefix(f"{url.removeprefix('https://')}: ")
        return problem("controller", f"{url}: {said}", fix)
    except trio.TooSlowError:
        return problem("controller", f"{url}: no answer within {_ASK_S:.0f} s", "see whether the controller is well")
    if not isinstance(answer, ControlRefusal):
        return Finding(step="controller", found=f"{url}: TLS is mutual, and it knows this node")
    if answer.status == 503:
        return note("controller", f"{url}: TLS is mutual; it does not lead or serve now ({answer.code})")
    if answer.stranger:
        anew = (
            f"lunanexa node show {identity.node} tells why; what lets it in again is a token (lunanexa node token"
            f" {identity.node} --again --out FILE), then lunanexa-node enroll"
        )
        return problem("controller", f"{url} does not take this node for its own: {answer}", anew)
    return problem("controller", f"{url}: {answer}", "see the controller's log")


def _lease(folder: NodeFolder, plan: AgentPlan) -> Finding:
    if not folder.runs:
        return note("lease", "no agent runs, so this node has none")
    return note("lease", f"kept in the running agent's memory; lunanexa node show {plan.node} tells when it was heard")


def _time(unix_s: int) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
