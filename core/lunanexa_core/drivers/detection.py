"""Which kind of server answers, from what it says of itself: pure, so that recorded answers are its tests.

Servers imitate one another (llama-server and SGLang answer Ollama's ``/api/tags`` too), so the owner that a model's
card names counts first. What is left over is served as any OpenAI-compatible server.
Sources: vLLM ``entrypoints/openai/models``, llama.cpp ``tools/server``, Ollama ``api/types.go``.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Driver
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.llama_cpp import LLAMA_CPP
from lunanexa_core.drivers.models_body import ModelCard, model_cards
from lunanexa_core.drivers.ollama import OLLAMA
from lunanexa_core.drivers.vllm import VLLM
from lunanexa_core.workload import Dialect

MODELS_PATH: Final = "/v1/models"
OPENAPI: Final = "/openapi.json"
VLLM_VERSION: Final = "/version"
LLAMA_PROPS: Final = "/props"
OLLAMA_VERSION: Final = "/api/version"
OLLAMA_TAGS: Final = "/api/tags"
TELLING_PATHS: Final = (OPENAPI, VLLM_VERSION, LLAMA_PROPS, OLLAMA_VERSION, OLLAMA_TAGS)
"""Beside the model list."""

DEPENDING_ON_FLAGS: Final = (Dialect.EMBEDDINGS, Dialect.RERANK, Dialect.AUDIO_TRANSCRIPTIONS)
"""What a llama-server answers 501 to, even to an empty request, where its flags or its model lack it."""
VLLM_SLOTS: Final = 64
"""It does not tell its ``--max-num-seqs`` (256 and more); beyond it, it queues by itself."""
OLLAMA_SLOTS: Final = 1
"""``OLLAMA_NUM_PARALLEL`` where it is not set; Ollama does not tell it, and counts it by model."""
OTHER_SLOTS: Final = 4
_LACKING: Final = (404, 405, 501)
_NUMBER_MAX: Final = 65_536
_CONTEXT_MAX: Final = 100_000_000


@attrs.frozen(kw_only=True)
class ServedModel:
    """One model that a server lists. ``context_tokens``: of one request, ``None`` when it does not say."""

    name: str
    context_tokens: int | None = None


@attrs.frozen(kw_only=True)
class RecognisedServer:
    """What answers. ``version`` is what it calls itself by; ``slots`` is how many requests of one model it may be
    given at once; ``elsewhere`` are models that it lists and has run by another machine."""

    driver: Driver
    title: str
    version: str | None = None
    models: tuple[ServedModel, ...]
    slots: int
    dialects: tuple[Dialect, ...] | None = None
    """Endpoints that it says it has; ``None`` when it does not say."""
    elsewhere: tuple[str, ...] = ()


def recognise(answers: Mapping[str, bytes]) -> RecognisedServer | None:
    """The server that gave these bodies (by path, of answers with status 200 alone), or ``None`` when it lists no
    models as OpenAI's API has it."""
    cards = model_cards(answers.get(MODELS_PATH, b""))
    ollama = _ollama(answers, cards)
    if ollama is not None or cards is None:
        return ollama
    owners = {card.get("owned_by") for card in cards}
    version = _text(_object(answers, VLLM_VERSION), "version")
    if owners == {"vllm"} and version is not None:
        return RecognisedServer(
            driver=VLLM,
            title="vLLM",
            version=version,
            models=_models(cards),
            slots=VLLM_SLOTS,
            dialects=_dialects(answers),
        )
    if owners == {"llamacpp"}:
        props = _object(answers, LLAMA_PROPS)
        return RecognisedServer(
            driver=LLAMA_CPP,
            title="llama.cpp",
            version=_text(props, "build_info"),
            models=_models(cards),
            slots=_number(props, "total_slots", _NUMBER_MAX) or OTHER_SLOTS,
        )
    return RecognisedServer(
        driver=GENERIC_OPENAI,
        title="OpenAI-compatible server",
        models=_models(cards),
        slots=OTHER_SLOTS,
        dialects=_dialects(answers),
    )


def tells_by_refusing(server: RecognisedServer) -> bool:
    """Whether what ``server`` has is known by how it refuses an empty request for it. One with several models
    would refuse it for not naming one."""
    return server.driver is LLAMA_CPP and len(server.models) == 1


def with_refusals(server: RecognisedServer, statuses: Mapping[Dialect, int]) -> RecognisedServer:
    """``server`` with what the statuses of empty requests (of :data:`DEPENDING_ON_FLAGS`) say of it. Where it ranks,
    its model has no words."""
    more = {dialect for dialect, status in statuses.items() if status not in _LACKING}
    if Dialect.RERANK in more:
        return attrs.evolve(server, dialects=(Dialect.RERANK,))
    usual = server.driver.dialects(EngineSpec(driver=server.driver.name, served_name=server.models[0].name))
    return attrs.evolve(server, dialects=tuple(dialect for dialect in Dialect if dialect in usual | more))


def _ollama(answers: Mapping[str, bytes], cards: Sequence[ModelCard] | None) -> RecognisedServer | None:
    """Ollama lists under ``/v1/models`` what ``/api/tags`` has; without any model its list is ``null``."""
    version = _text(_object(answers, OLLAMA_VERSION), "version")
    tags = _object(answers, OLLAMA_TAGS).get("models")
    if version is None or not isinstance(tags, list):
        return None
    entries = {entry["name"]: entry for entry in tags if isinstance(entry, dict) and isinstance(entry.get("name"), str)}
    listed = _models(cards or ())
    if not {model.name for model in listed} <= set(entries):
        return None
    elsewhere = tuple(model.name for model in listed if entries[model.name].get("remote_host"))
    return RecognisedServer(
        driver=OLLAMA,
        title="Ollama",
        version=version,
        models=tuple(model for model in listed if model.name not in elsewhere),
        slots=OLLAMA_SLOTS,
        elsewhere=elsewhere,
    )


def _models(cards: Sequence[ModelCard]) -> tuple[ServedModel, ...]:
    """Each name once, in the order of the list. A LoRA adapter has the context of its base model."""
    by_name: dict[str, ModelCard] = {}
    for card in cards:
        name = _text(card, "id")
        if name and name.isprintable():
            by_name.setdefault(name, card)
    return tuple(
        ServedModel(name=name, context_tokens=_context(card) or _context(by_name.get(_text(card, "parent") or "")))
        for name, card in by_name.items()
    )


def _dialects(answers: Mapping[str, bytes]) -> tuple[Dialect, ...] | None:
    """vLLM registers what its model can do, and FastAPI says so. What names no endpoint of ours says nothing."""
    paths = _object(answers, OPENAPI).get("paths")
    return tuple(dialect for dialect in Dialect if isinstance(paths, dict) and dialect.path in paths) or None


def _context(card: ModelCard | None) -> int | None:
    """vLLM's, or that of one slot of llama-server."""
    if card is None:
        return None
    meta = card.get("meta")
    own = _number(card, "max_model_len", _CONTEXT_MAX)
    return own or (_number(meta, "n_ctx", _CONTEXT_MAX) if isinstance(meta, dict) else None)


def _object(answers: Mapping[str, bytes], path: str) -> Mapping[str, Any]:
    try:
        document = json.loads(answers.get(path, b""))
    except (ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _text(document: Mapping[str, Any], member: str) -> str | None:
    value = document.get(member)
    return value if isinstance(value, str) else None


def _number(document: Mapping[str, Any], member: str, most: int) -> int | None:
    value = document.get(member)
    return value if type(value) is int and 0 < value <= most else None
