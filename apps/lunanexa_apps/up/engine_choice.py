"""Which engine serves, from what was asked and what this machine has: pure, so that each case is one test.

``--adopt`` wins (see ``adoption``); then ``--engine``; then a model file means llama.cpp; then the reference engine.
A server that already answers is never adopted by itself: somebody else may own it.
"""

import os
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import attrs

from lunanexa_apps.up.adoption import adopt_servers
from lunanexa_apps.up.choice import ChoiceRefused, Chosen, EngineChoice, EngineWish, Surroundings
from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.generic_openai import GENERIC_OPENAI
from lunanexa_core.drivers.llama_cpp import LLAMA_CPP
from lunanexa_core.drivers.ollama import OLLAMA
from lunanexa_core.drivers.reference import REFERENCE
from lunanexa_core.drivers.vllm import VLLM
from lunanexa_core.ids import Alias, DeploymentId

DEPLOYMENT: Final = DeploymentId("default")
"""One name for whatever engine ``up`` starts, so that another model replaces the last one."""
REFERENCE_ALIAS: Final = "lunanexa-reference"
GGUF_MAGIC: Final = b"GGUF"
_SPELLINGS: Final[Mapping[str, str]] = MappingProxyType(
    {"llama.cpp": LLAMA_CPP.name, "llama-server": LLAMA_CPP.name, "openai": GENERIC_OPENAI.name}
)
_NO_ALIAS: Final = re.compile(r"[^A-Za-z0-9_.:-]+")


def choose_engine(wish: EngineWish, found: Surroundings) -> Chosen | ChoiceRefused:
    """What shall serve for ``wish`` on a machine like ``found``."""
    driver = None if wish.engine is None else _SPELLINGS.get(wish.engine, wish.engine)
    if driver is not None and driver not in DRIVERS:
        return ChoiceRefused(message=f"unknown engine {wish.engine}", hint="known engines: " + ", ".join(DRIVERS))
    if wish.adopt:
        return adopt_servers(wish, found.adopted, None if driver is None else DRIVERS[driver])
    match driver:
        case GENERIC_OPENAI.name | VLLM.name | OLLAMA.name:
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


def _llama_cpp(wish: EngineWish, found: Surroundings) -> Chosen | ChoiceRefused:
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
    engine = _spec(wish, driver=LLAMA_CPP.name, served_name=alias, binary=binary, model_path=wish.model)
    return _chosen(engine, f"{os.path.basename(wish.model)} in llama.cpp ({binary})")


def _reference(wish: EngineWish, found: Surroundings) -> Chosen | ChoiceRefused:
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
    engine = _spec(wish, driver=REFERENCE.name, served_name=alias, binary=binary)
    return _chosen(engine, "reference engine: a small n-gram model, no neural network")


def _chosen(engine: EngineSpec, description: str) -> Chosen:
    """One engine to start, which knows its model by the alias."""
    choice = EngineChoice(deployment=DEPLOYMENT, alias=Alias(engine.served_name), engine=engine)
    return Chosen(engines=(choice,), description=description)


def _alias(wish: EngineWish, natural: str) -> Alias:
    """The asked one as it is (the controller judges it); the natural one in an identifier's characters."""
    return Alias(wish.alias or _NO_ALIAS.sub("-", natural).strip("-")[:256] or "model")


def _spec(wish: EngineWish, *, driver: str, served_name: str, binary: str, model_path: str | None = None) -> EngineSpec:
    spec = EngineSpec(
        driver=driver,
        served_name=served_name,
        binary=binary,
        arguments=wish.arguments,
        model_path=model_path,
        context_tokens=wish.context_tokens,
    )
    return spec if wish.slots is None else attrs.evolve(spec, slots=wish.slots)


def program_of(wish: EngineWish, found: Surroundings) -> str | None:
    """The program that would be started for ``wish``, for whoever looks whether it runs."""
    if wish.adopt:
        return None
    if wish.binary is not None:
        return wish.binary
    wants_llama = wish.model is not None or _SPELLINGS.get(wish.engine or "", wish.engine) == LLAMA_CPP.name
    return found.llama_server if wants_llama else found.reference_engine
