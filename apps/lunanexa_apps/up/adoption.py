"""Servers that run already, as deployments: one alias for each model that they list. Pure.

A model keeps its name as its alias, so that a client which knows it needs another base URL and nothing else.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Final

import attrs

from lunanexa_apps.up.choice import AdoptedServer, ChoiceRefused, Chosen, EngineChoice, EngineWish, Silence
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.detection import RecognisedServer, ServedModel
from lunanexa_core.drivers.driver import Driver
from lunanexa_core.ids import Alias, DeploymentId, is_identifier

ADOPTED_PREFIX: Final = "adopted-"
"""Deployments with such names are ``up``'s own: it removes those that it no longer wants."""
MODELS_MAX: Final = 256
"""Models of one server. One with more is a marketplace, and wants to be told which."""
_NO_IDENTIFIER: Final = re.compile(r"[^A-Za-z0-9_.:-]+")


def adopt_servers(wish: EngineWish, servers: Sequence[AdoptedServer], driver: Driver | None) -> Chosen | ChoiceRefused:
    """Deployments for what ``servers`` (one at least) list. ``driver`` takes the place of the one recognised."""
    if wish.model is not None or wish.binary is not None or wish.arguments:
        return ChoiceRefused(
            message="--adopt excludes --model, --engine-binary and --engine-argument: "
            "an adopted server has its model, and was started by somebody else",
            hint="leave one of them out",
        )
    told: list[tuple[str, RecognisedServer]] = []
    for server in servers:
        if isinstance(server.told, Silence):
            return _silent(server.url, server.told, keyed=server.url in wish.adopt_keys)
        told.append((server.url, server.told))
    offers = [_Offer(url, server, model) for url, server in told for model in server.models]
    picked = _picked(wish, offers, told)
    if isinstance(picked, ChoiceRefused):
        return picked
    engines, notes = _deployments(wish, picked, driver)
    notes += [f"{url}: {name} is run by another machine, and left out" for url, s in told for name in s.elsewhere]
    return Chosen(
        engines=engines, description=_description(servers, picked), notes=tuple(notes), adopt_keys=wish.adopt_keys
    )


@attrs.frozen
class _Offer:
    url: str
    server: RecognisedServer
    model: ServedModel


def _silent(url: str, silence: Silence, *, keyed: bool) -> ChoiceRefused:
    match silence:
        case Silence.KEY if keyed:
            return ChoiceRefused(message=f"the server at {url} does not accept the key", hint="check --adopt-key-file")
        case Silence.KEY:
            return ChoiceRefused(
                message=f"the server at {url} asks for a key",
                hint="put it into a file: --adopt-key-file FILE, or into LUNANEXA_ADOPT_KEY",
            )
        case Silence.LOADING:
            return ChoiceRefused(message=f"the server at {url} is not ready yet", hint="start again when it is")
        case Silence.NO_ANSWER | Silence.NO_LIST:
            return ChoiceRefused(
                message=f"no OpenAI-compatible server answers at {url}",
                hint=f"see that this lists its models: curl {url}/v1/models",
            )


def _picked(
    wish: EngineWish, offers: list[_Offer], told: list[tuple[str, RecognisedServer]]
) -> list[_Offer] | ChoiceRefused:
    """All; with ``--alias`` the one model that is called so, or the only one."""
    for url, server in told:
        if not server.models:
            return ChoiceRefused(message=f"the server at {url} lists no model", hint="load a model there first")
        if len(server.models) > MODELS_MAX and wish.alias is None:
            return ChoiceRefused(
                message=f"the server at {url} lists {len(server.models)} models, and {MODELS_MAX} are adopted at most",
                hint="name the one to serve: --alias NAME",
            )
    if wish.alias is None:
        return offers
    named = [offer for offer in offers if offer.model.name == wish.alias]
    if not named and len(offers) > 1:
        names = ", ".join(offer.model.name for offer in offers[:10]) + (", …" if len(offers) > 10 else "")
        return ChoiceRefused(
            message=f"no model is called {wish.alias}, and there are {len(offers)} that could get that name",
            hint=f"name one of them, or none to serve all: {names}",
        )
    return (named or offers)[:1]


def _deployments(
    wish: EngineWish, offers: list[_Offer], driver: Driver | None
) -> tuple[tuple[EngineChoice, ...], list[str]]:
    engines: dict[str, EngineChoice] = {}
    notes: list[str] = []
    for offer in offers:
        natural = wish.alias or natural_alias(offer.model.name)
        alias = _free(natural, engines)
        if alias != natural:
            notes.append(f"{offer.model.name} of {offer.url} is served as {alias}: {natural} is another's name")
        engines[alias] = EngineChoice(
            deployment=deployment_of(alias),
            alias=Alias(alias),
            engine=EngineSpec(
                driver=(driver or offer.server.driver).name,
                served_name=offer.model.name,
                url=offer.url,
                slots=wish.slots or offer.server.slots,
                context_tokens=wish.context_tokens or offer.model.context_tokens,
                dialects=offer.server.dialects if driver is None else None,
            ),
            allow_declared=True,
        )
    return tuple(engines.values()), notes


def natural_alias(name: str) -> str:
    """The model's own name where it can be an alias; of a path, or what can't be printed, what is left of it."""
    if name.startswith("/"):
        name = _NO_IDENTIFIER.sub("-", name.rstrip("/").rpartition("/")[2].removesuffix(".gguf")).strip("-")
    if name.isprintable() and name == name.strip() and 1 <= len(name) <= 256:
        return name
    return _NO_IDENTIFIER.sub("-", name).strip("-")[:256] or "model"


def _free(alias: str, taken: dict[str, EngineChoice]) -> str:
    number = 1
    free = alias
    while free in taken:
        number += 1
        free = f"{alias[:250]}-{number}"
    return free


def deployment_of(alias: str) -> DeploymentId:
    """The same name at every start, another for every alias."""
    name = ADOPTED_PREFIX + alias
    if is_identifier(name):
        return DeploymentId(name)
    readable = _NO_IDENTIFIER.sub("-", alias)[:200]
    mark = hashlib.sha256(alias.encode(errors="replace")).hexdigest()[:16]
    return DeploymentId(f"{ADOPTED_PREFIX}{readable}-{mark}")


def named(server: AdoptedServer) -> str:
    """What it is and where, as far as it tells."""
    if isinstance(server.told, Silence):
        return f"something at {server.url}"
    version = "" if server.told.version is None else f" {server.told.version}"
    return f"{server.told.title}{version} at {server.url}"


def _description(servers: Sequence[AdoptedServer], picked: list[_Offer]) -> str:
    counts = [(server, sum(1 for offer in picked if offer.url == server.url)) for server in servers]
    return "; ".join(
        f"{named(server)} (adopted)" + (f", {count} models" if count > 1 else "") for server, count in counts if count
    )
