"""Is a deployment's specification one that a node could follow? The first thing wrong, with its field."""

from typing import Final

from lunanexa_core.deployment import DeploymentSpec, EngineSpec
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.ids import is_identifier
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.state import State

REPLICAS_MAX: Final = 64
KEEP_MS_MAX: Final = 604_800_000
"""A week."""


def bad_specification(state: State, spec: DeploymentSpec) -> Refusal | None:
    """Why ``spec`` is not taken, or ``None``."""
    if not is_identifier(spec.deployment):
        return _refuse("deployment", "A deployment's name has ASCII letters, digits and -_.: only, 256 at most.")
    if not 1 <= len(spec.alias) <= 256 or not spec.alias.isprintable():
        return _refuse("alias", "An alias has 1 to 256 printable characters.")
    if state.deployment_of_alias.get(spec.alias, spec.deployment) != spec.deployment:
        return _refuse("alias", f"The alias {spec.alias!r} belongs to another deployment.")
    return _bad_number("replicas", spec.replicas, 0, REPLICAS_MAX) or _bad_engine(spec.engine) or _bad_exclusion(spec)


def _bad_exclusion(spec: DeploymentSpec) -> Refusal | None:
    keep_ms = spec.cut_off_keep_ms
    if spec.engine.url is not None:
        if spec.exclusive:
            return _refuse("exclusive", "exclusive is for engines to start, and engine.url adopts one.")
        if keep_ms is not None:
            return _refuse("cut_off_keep_ms", "cut_off_keep_ms is for engines to start, and engine.url adopts one.")
    if spec.exclusive and keep_ms is None:
        message = (
            "cut_off_keep_ms must be given for an exclusive deployment: an engine that a cut-off node keeps without"
            " limit could never be replaced. 0: it is stopped as soon as its node's lease has lapsed."
        )
        return _refuse("cut_off_keep_ms", message)
    return _bad_number("cut_off_keep_ms", keep_ms or 0, 0, KEEP_MS_MAX)


def _bad_engine(engine: EngineSpec) -> Refusal | None:
    if engine.driver not in DRIVERS:
        known = ", ".join(sorted(DRIVERS))
        return _refuse("engine.driver", f"There is no driver {engine.driver[:64]!r}; known: {known}.")
    if (engine.binary is None) == (engine.url is None):
        return _refuse("engine", "Exactly one of engine.binary (to start) and engine.url (to adopt) is needed.")
    if not engine.served_name:
        return _refuse("engine.served_name", "engine.served_name must not be empty.")
    if engine.url is not None and parse_engine_url(engine.url) is None:
        return _refuse("engine.url", "engine.url must be http://host:port.")
    for param, path in {"engine.binary": engine.binary, "engine.model_path": engine.model_path}.items():
        if path is not None and not path.startswith("/"):
            return _refuse(param, f"{param} must be an absolute path.")
    return (
        _bad_number("engine.slots", engine.slots, 1, 65_536)
        or _bad_number("engine.context_tokens", engine.context_tokens or 1, 1, 100_000_000)
        or _bad_number("engine.start_timeout_ms", engine.start_timeout_ms, 1_000, 86_400_000)
        or _bad_number("engine.stop_timeout_ms", engine.stop_timeout_ms, 100, 3_600_000)
        or _bad_number("engine.restart_budget", engine.restart_budget, 0, 1_000)
        or _bad_number("engine.memory_wait_ms", engine.memory_wait_ms, 1_000, 86_400_000)
        or _bad_memory(engine)
    )


def _bad_memory(engine: EngineSpec) -> Refusal | None:
    for param, mib in {"memory_mib": engine.memory_mib, "memory_limit_mib": engine.memory_limit_mib}.items():
        if mib is not None and engine.url is not None:
            return _refuse(f"engine.{param}", f"engine.{param} is for engines to start, and engine.url adopts one.")
        bad = _bad_number(f"engine.{param}", 1 if mib is None else mib, 1, 1 << 30)
        if bad is not None:
            return bad
    return None


def _bad_number(param: str, value: int, low: int, high: int) -> Refusal | None:
    return None if low <= value <= high else _refuse(param, f"{param} must be {low} to {high}.")


def _refuse(param: str, message: str) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)
