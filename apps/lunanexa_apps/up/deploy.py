"""Brings what was chosen into service through the operator plane, and watches it."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import attrs
import trio

from lunanexa_apps import codec
from lunanexa_apps.call_errors import exit_code_of, unanswered, words_of
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.adoption import ADOPTED_PREFIX
from lunanexa_apps.up.choice import EngineChoice
from lunanexa_apps.up.engine_choice import DEPLOYMENT
from lunanexa_apps.up.screen import Failure
from lunanexa_apps.up.status_view import ReplicaView, describe_state, failed_for_good, not_placed, replicas_of
from lunanexa_client import AsyncClient, AsyncOperator, ClientSettings, Document, LunaNexaError, Retries
from lunanexa_client.address import Address
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_ports.http_client import HttpClient

T = TypeVar("T")

POLL_S: Final = 0.2
ASK_DEADLINE_MS: Final = 5_000
CHANGE_DEADLINE_MS: Final = 15_000


@attrs.frozen(kw_only=True)
class Planes:
    """One controller, asked with the operator's token and with the API key. What fails is tried again here, by
    whoever knows what for."""

    operator: AsyncOperator
    data: AsyncClient


def planes_of(http: HttpClient, address: HostPort, *, operator_token: str, api_key: str) -> Planes:
    """The controller at ``address``."""
    settings = ClientSettings(
        address=Address(host=address.host, port=address.port, tls=False),
        deadline_ms=ASK_DEADLINE_MS,
        grace_ms=0,
        retries=Retries(max_retries=0),
    )
    return Planes(
        operator=AsyncClient(settings=attrs.evolve(settings, api_key=operator_token), http=http).operator,
        data=AsyncClient(settings=attrs.evolve(settings, api_key=api_key), http=http),
    )


async def wait_for_controller(planes: Planes) -> None:
    """Returns when the controller answers, be it with a refusal."""
    while True:
        try:
            await planes.operator.status()
            return
        except LunaNexaError as error:
            if not unanswered(error):
                return
        await trio.sleep(POLL_S)


async def deploy(planes: Planes, engines: Sequence[EngineChoice]) -> Failure | None:
    """Asks for these deployments, and for the end of those that an earlier ``up`` asked for; waits while the
    controller is not ready to take them."""
    listed = await _ask(planes.operator.deployments)
    if isinstance(listed, Failure):
        return listed
    wanted = {choice.deployment for choice in engines}
    for name in _own_deployments(listed):
        # First: one that is wanted may have its alias.
        if name in wanted:
            continue
        removed = await _ask(partial(planes.operator.remove_deployment, name))
        if isinstance(removed, Failure):
            return removed
    for choice in engines:
        applied = await _ask(partial(planes.operator.apply_deployment, choice.deployment, _document(choice)))
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


def _own_deployments(listed: Sequence[Document]) -> list[str]:
    """Those that ``up`` names. An operator's own are left alone."""
    specs = [entry.get("spec") for entry in listed]
    names = [str(spec.get("deployment")) for spec in specs if isinstance(spec, dict)]
    return [name for name in names if name == DEPLOYMENT or name.startswith(ADOPTED_PREFIX)]


async def _ask(ask: Callable[..., Awaitable[T]]) -> T | Failure:
    """The operator plane's answer, or the :class:`Failure` that its refusal means."""
    while True:
        try:
            return await ask(deadline_ms=CHANGE_DEADLINE_MS)
        except LunaNexaError as error:
            if not unanswered(error) and error.status != 503:
                return Failure(
                    message=f"the controller does not accept this deployment: {words_of(error)}",
                    exit_code=exit_code_of(error),
                )
        await trio.sleep(POLL_S)


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
    return await _or_none(planes.operator.status())


async def drain(planes: Planes) -> int | None:
    """Admits nothing more; how many requests are still in flight, ``None`` when nobody can say."""
    answer = await _or_none(planes.operator.drain())
    count = None if answer is None else answer.get("in_flight")
    return count if isinstance(count, int) else None


async def _listed(planes: Planes) -> frozenset[str]:
    return frozenset(model.id for model in await _or_none(planes.data.models()) or ())


async def _or_none(asked: Awaitable[T]) -> T | None:
    try:
        return await asked
    except LunaNexaError:
        return None


def _failure_of(replica: ReplicaView) -> Failure:
    return Failure(
        message=f"the engine {replica.exit_reason or 'failed'}, and is not tried again",
        details=replica.last_lines,
        hint="mend what its last lines say, then start again: lunanexa up",
    )
