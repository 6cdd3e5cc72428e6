"""Brings one deployment into service through the operator plane, and watches it."""

from collections.abc import Callable
from typing import Any, Final

import attrs
import trio

from lunanexa_apps import codec
from lunanexa_apps.up.engine_choice import EngineChoice
from lunanexa_apps.up.plane import Plane, PlaneRefusal
from lunanexa_apps.up.screen import Failure
from lunanexa_apps.up.status_view import ReplicaView, describe_state, failed_for_good, not_placed, replicas_of
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.ids import DeploymentId
from lunanexa_ports.errors import PortError

DEPLOYMENT: Final = "default"
"""One name for whatever ``up`` serves, so that another model replaces the last one."""
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


async def deploy(planes: Planes, choice: EngineChoice) -> Failure | None:
    """Asks for the deployment; waits while the controller is not ready to take it."""
    spec = DeploymentSpec(
        deployment=DeploymentId(DEPLOYMENT),
        alias=choice.alias,
        engine=choice.engine,
        allow_declared=choice.allow_declared,
    )
    document: Any = codec.unstructure(spec)
    del document["deployment"]
    while True:
        try:
            answer = await planes.operator.ask("PUT", f"/admin/v1/deployments/{DEPLOYMENT}", document)
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
                return None


async def wait_for_service(
    planes: Planes, choice: EngineChoice, progress: Callable[[str], None]
) -> tuple[ReplicaView, ...] | Failure:
    """Returns the replicas when the alias is listed, so that a call would succeed, or why it never will be."""
    while True:
        status = await read_status(planes)
        replicas = replicas_of(status, DEPLOYMENT)
        if await _is_listed(planes, choice.alias):
            return replicas
        failed = failed_for_good(replicas)
        if failed is not None:
            return _failure_of(failed)
        obstacle = not_placed(status, DEPLOYMENT)
        progress(f"{choice.alias}: {describe_state(replicas)}" + (f" ({obstacle})" if obstacle else ""))
        await trio.sleep(POLL_S)


async def read_status(planes: Planes) -> Any:
    """The status document, or ``None`` when the controller does not answer with one now."""
    return await _try(planes.operator, "GET", "/admin/v1/status")


async def drain(planes: Planes) -> int | None:
    """Admits nothing more; how many requests are still in flight, ``None`` when nobody can say."""
    answer = await _try(planes.operator, "POST", "/admin/v1/drain")
    count = answer.get("in_flight") if isinstance(answer, dict) else None
    return count if isinstance(count, int) else None


async def _is_listed(planes: Planes, alias: str) -> bool:
    answer = await _try(planes.data, "GET", "/v1/models")
    cards = answer.get("data") if isinstance(answer, dict) else None
    return isinstance(cards, list) and any(isinstance(card, dict) and card.get("id") == alias for card in cards)


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
