"""Which engine serves, from what was asked and what this machine has: pure, so that each case is one test.

``--adopt URL`` wins; then ``--engine``; then a model file means llama.cpp; then the reference engine. A server
that already answers is never adopted by itself: somebody else may own it.
"""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.llama_cpp import LLAMA_CPP
from lunanexa_core.drivers.reference import REFERENCE
from lunanexa_core.ids import Alias

REFERENCE_ALIAS: Final = "lunanexa-reference"
GGUF_MAGIC: Final = b"GGUF"
USUAL_SERVERS: Final[Mapping[int, str]] = MappingProxyType({11434: "Ollama", 8000: "vLLM", 8080: "llama.cpp"})
_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"llama.cpp": LLAMA_CPP.name, "llama-server": LLAMA_CPP.name, "openai": GENERIC_OPENAI.name}
)
_NO_ALIAS: Final = re.compile(r"[^A-Za-z0-9_.:-]+")


@attrs.frozen(kw_only=True)
class EngineWish:
    """What was asked for; ``None`` where nothing was said. Paths are absolute."""

    model: str | None = None
    engine: str | None = None
    binary: str | None = None
    adopt: str | None = None
    alias: str | None = None
    slots: int | None = None
    context_tokens: int | None = None


@attrs.frozen(kw_only=True)
class Surroundings:
    """What was found. ``model_head``: the model file's first bytes, ``None`` when it can't be read;
    ``adopted_models``: what the server to adopt lists, ``None`` when it does not answer as one."""

    llama_server: str | None = None
    reference_engine: str | None = None
    binary_runs: bool = False
    model_head: bytes | None = None
    adopted_models: tuple[str, ...] | None = None


@attrs.frozen(kw_only=True)
class EngineChoice:
    """What shall serve, and in words."""

    alias: Alias
    engine: EngineSpec
    description: str
    allow_declared: bool = False


@attrs.frozen(kw_only=True)
class ChoiceRefused:
    """Why nothing can serve as asked, and what to do."""

    message: str
    hint: str


def choose_engine(wish: EngineWish, found: Surroundings) -> EngineChoice | ChoiceRefused:
    """The engine for ``wish`` on a machine like ``found``."""
    driver = None if wish.engine is None else _SPELLINGS.get(wish.engine, wish.engine)
    if driver is not None and driver not in DRIVERS:
        return ChoiceRefused(message=f"unknown engine {wish.engine}", hint="known engines: " + ", ".join(DRIVERS))
    if wish.adopt is not None:
        return _adopt(wish, found, driver, wish.adopt)
    match driver:
        case GENERIC_OPENAI.name:
            return ChoiceRefused(
                message=f"{driver} serves what another server runs, and none is named",
                hint="name it: --adopt http://127.0.0.1:8080",
            )
        case REFERENCE.name:
            return _reference(wish, found)
        case LLAMA_CPP.name:
            return _llama_cpp(wish, found)
        case None if wish.model is not None:
            return _llama_cpp(wish, found)
        case None if wish.binary is not None:
            return ChoiceRefused(message="--engine-binary without a model to serve", hint="add --model FILE.gguf")
        case _:
            return _reference(wish, found)


def _adopt(wish: EngineWish, found: Surroundings, driver: str | None, url: str) -> EngineChoice | ChoiceRefused:
    if wish.model is not None or wish.binary is not None:
        return ChoiceRefused(
            message="--adopt excludes --model and --engine-binary: an adopted server has its model",
            hint="leave one of them out",
        )
    if found.adopted_models is None:
        return ChoiceRefused(
            message=f"no OpenAI-compatible server answers at {url}",
            hint=f"see that this lists its models, without a key: curl {url}/v1/models",
        )
    if not found.adopted_models:
        return ChoiceRefused(message=f"the server at {url} lists no model", hint="load a model there first")
    served_name = found.adopted_models[0]
    if wish.alias in found.adopted_models:
        served_name = wish.alias
    return EngineChoice(
        alias=_alias(wish, served_name.rsplit("/", 1)[-1]),
        engine=_spec(wish, driver=driver or GENERIC_OPENAI.name, served_name=served_name, url=url),
        description=f"{served_name} of the server at {url} (adopted)",
        allow_declared=True,
    )


def _llama_cpp(wish: EngineWish, found: Surroundings) -> EngineChoice | ChoiceRefused:
    binary = wish.binary or found.llama_server
    if wish.model is None:
        return ChoiceRefused(message="llama.cpp needs a model file", hint="add --model FILE.gguf")
    if found.model_head is None:
        return ChoiceRefused(message=f"{wish.model}: no such file, or not readable", hint="check --model")
    if not found.model_head.startswith(GGUF_MAGIC):
        return ChoiceRefused(
            message=f"{wish.model} is no GGUF file", hint="llama.cpp reads GGUF; convert the model or take another file"
        )
    if binary is None:
        return ChoiceRefused(
            message="no llama-server on PATH to serve the model with",
            hint="install llama.cpp, or name the program: --engine-binary /path/to/llama-server",
        )
    if not found.binary_runs:
        return ChoiceRefused(message=f"{binary}: no such program, or not executable", hint="check --engine-binary")
    stem = os.path.splitext(os.path.basename(wish.model))[0]
    alias = _alias(wish, stem)
    return EngineChoice(
        alias=alias,
        engine=_spec(wish, driver=LLAMA_CPP.name, served_name=alias, binary=binary, model_path=wish.model),
        description=f"{os.path.basename(wish.model)} in llama.cpp ({binary})",
    )


def _reference(wish: EngineWish, found: Surroundings) -> EngineChoice | ChoiceRefused:
    if wish.model is not None:
        return ChoiceRefused(
            message="the reference engine has its own small language model and reads no file",
            hint="leave --model out, or take --engine llama_cpp",
        )
    binary = wish.binary or found.reference_engine
    if binary is None or not found.binary_runs:
        return ChoiceRefused(
            message=f"{binary or 'lunanexa-engine'}: no such program, or not executable",
            hint="install the package again (make setup)",
        )
    alias = _alias(wish, REFERENCE_ALIAS)
    return EngineChoice(
        alias=alias,
        engine=_spec(wish, driver=REFERENCE.name, served_name=alias, binary=binary),
        description="reference engine: a small n-gram model, no neural network",
    )


def _alias(wish: EngineWish, natural: str) -> Alias:
    """The asked one as it is (the controller judges it); the natural one in an identifier's characters."""
    return Alias(wish.alias or _NO_ALIAS.sub("-", natural).strip("-")[:256] or "model")


def _spec(
    wish: EngineWish,
    *,
    driver: str,
    served_name: str,
    binary: str | None = None,
    model_path: str | None = None,
    url: str | None = None,
) -> EngineSpec:
    spec = EngineSpec(
        driver=driver,
        served_name=served_name,
        binary=binary,
        model_path=model_path,
        url=url,
        context_tokens=wish.context_tokens,
    )
    return spec if wish.slots is None else attrs.evolve(spec, slots=wish.slots)


def program_of(wish: EngineWish, found: Surroundings) -> str | None:
    """The program that would be started for ``wish``, for whoever looks whether it runs."""
    if wish.adopt is not None:
        return None
    if wish.binary is not None:
        return wish.binary
    wants_llama = wish.model is not None or _SPELLINGS.get(wish.engine or "", wish.engine) == LLAMA_CPP.name
    return found.llama_server if wants_llama else found.reference_engine
