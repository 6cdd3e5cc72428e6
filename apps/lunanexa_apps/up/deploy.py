"""Brings what was chosen into service through the operator plane, and watches it."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import attrs
import trio

from lunanexa_apps import codec
from lunanexa_apps.up.adoption import ADOPTED_PREFIX
from lunanexa_apps.up.choice import EngineChoice
from lunanexa_apps.up.engine_choice import DEPLOYMENT
from lunanexa_apps.up.plane import Plane, PlaneRefusal
from lunanexa_apps.up.screen import Failure
from lunanexa_apps.up.status_view import ReplicaView, describe_state, failed_for_good, not_placed, replicas_of
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_ports.errors import PortError

POLL_S: Final = 0.2
ASK_TIMEOUT_MS: Final = 5_000


@attrs.frozen(kw_only=True)
class Planes:
    """One controller, seen with the operator's token and with the API key."""

    operator: Plane
    data: Plane


async def wait_for_controller(planes: Planes) -> None:
    """Returns when the controller answers ``/health``."""
    while True:
        answer = await _try(planes.data, "GET", "/health", anything=True)
        if answer is not None:
            return
        await trio.sleep(POLL_S)


async def deploy(planes: Planes, engines: Sequence[EngineChoice]) -> Failure | None:
    """Asks for these deployments, and for the end of those that an earlier ``up`` asked for; waits while the
    controller is not ready to take them."""
    listed = await _ask(planes, "GET", "/admin/v1/deployments")
    if isinstance(listed, Failure):
        return listed
    wanted = {choice.deployment for choice in engines}
    for name in _own_deployments(listed):
        # First: one that is wanted may have its alias.
        removed = None if name in wanted else await _ask(planes, "DELETE", f"/admin/v1/deployments/{name}")
        if isinstance(removed, Failure):
            return removed
    for choice in engines:
        applied = await _ask(planes, "PUT", f"/admin/v1/deployments/{choice.deployment}", _document(choice))
        if isinstance(applied, Failure):
            return applied
    return None


def _document(choice: EngineChoice) -> Any:
    spec = DeploymentSpec(
        deployment=choice.deployment,
        alias=choice.alias,
        engine=choice.engine,
        allow_declared=choice.allow_declared,
    )
    document: Any = codec.unstructure(spec)
    del document["deployment"]
    return document


def _own_deployments(listed: Any) -> list[str]:
    """Those that ``up`` names. An operator's own are left alone."""
    entries = listed.get("data") if isinstance(listed, dict) else None
    specs = [entry.get("spec") for entry in entries or () if isinstance(entry, dict)]
    names = [str(spec.get("deployment")) for spec in specs if isinstance(spec, dict)]
    return [name for name in names if name == DEPLOYMENT or name.startswith(ADOPTED_PREFIX)]


async def _ask(planes: Planes, method: str, target: str, document: Any = None) -> Any:
    """The operator plane's answer, or the :class:`Failure` that its refusal means."""
    while True:
        try:
            answer = await planes.operator.ask(method, target, document)
        except PortError:
            await trio.sleep(POLL_S)
            continue
        match answer:
            case PlaneRefusal(status=503):
                await trio.sleep(POLL_S)
            case PlaneRefusal():
                return Failure(
                    message=f"the controller does not accept this deployment: {answer.text}",
                    exit_code=answer.exit_code,
                )
            case _:
                return answer


async def wait_for_service(
    planes: Planes, engines: Sequence[EngineChoice], progress: Callable[[str], None]
) -> tuple[ReplicaView, ...] | Failure:
    """Returns the first engine's replicas when every alias is listed, so that a call would succeed, or why one
    never will be."""
    while True:
        status = await read_status(planes)
        listed = await _listed(planes)
        missing = [choice for choice in engines if choice.alias not in listed]
        if not missing:
            return replicas_of(status, engines[0].deployment)
        for choice in missing:
            failed = failed_for_good(replicas_of(status, choice.deployment))
            if failed is not None:
                return _failure_of(failed)
        progress(_waiting(status, missing[0], len(engines) - len(missing), len(engines)))
        await trio.sleep(POLL_S)


def _waiting(status: Any, choice: EngineChoice, served: int, of: int) -> str:
    obstacle = not_placed(status, choice.deployment)
    adopted = choice.engine.url is not None
    state = describe_state(replicas_of(status, choice.deployment), adopted=adopted)
    count = f"{served} of {of} models are served; " if of > 1 else ""
    return f"{count}{choice.alias}: {state}" + (f" ({obstacle})" if obstacle else "")


async def read_status(planes: Planes) -> Any:
    """The status document, or ``None`` when the controller does not answer with one now."""
    return await _try(planes.operator, "GET", "/admin/v1/status")


async def drain(planes: Planes) -> int | None:
    """Admits nothing more; how many requests are still in flight, ``None`` when nobody can say."""
    answer = await _try(planes.operator, "POST", "/admin/v1/drain")
    count = answer.get("in_flight") if isinstance(answer, dict) else None
    return count if isinstance(count, int) else None


async def _listed(planes: Planes) -> frozenset[str]:
    answer = await _try(planes.data, "GET", "/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    ids = [card.get("id") for card in cards if isinstance(card, dict)] if isinstance(cards, list) else []
    return frozenset(name for name in ids if isinstance(name, str))


async def _try(plane: Plane, method: str, target: str, *, anything: bool = False) -> Any:
    """One question that may fail: ``None`` then. ``anything``: a refusal is an answer too."""
    try:
        answer = await plane.ask(method, target, timeout_ms=ASK_TIMEOUT_MS)
    except PortError:
        return None
    return answer if anything or not isinstance(answer, PlaneRefusal) else None


def _failure_of(replica: ReplicaView) -> Failure:
    return Failure(
        message=f"the engine {replica.exit_reason or 'failed'}, and is not tried again",
        details=replica.last_lines,
        hint="mend what its last lines say, then start again: lunanexa up",
    )
