"""The reference engine of this package (``lunanexa-engine``).

It lists each of its names in ``/v1/models``, so that a start id given as a second name is its identity slot;
its metric names are vLLM's.
"""

from typing import Final

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import (
    Capabilities,
    Driver,
    IdentityFinding,
    IdentityQuestion,
    LaunchInput,
    LaunchPlan,
    LaunchRefusal,
    MetricMap,
)
from lunanexa_core.drivers.models_body import identify_by_name, model_cards, names
from lunanexa_core.drivers.specification import LOOPBACK, check_launch, clean_environment, status_health
from lunanexa_core.workload import Dialect

KEY_VARIABLE: Final = "LUNANEXA_ENGINE_API_KEY"


def dialects(_engine: EngineSpec) -> frozenset[Dialect]:
    """All of them."""
    return frozenset(Dialect)


def launch(order: LaunchInput) -> LaunchPlan | LaunchRefusal:
    engine = order.assignment.engine
    refusal = check_launch(engine, model_needed=False)
    if refusal is not None:
        return refusal
    context = () if engine.context_tokens is None else ("--context-length", str(engine.context_tokens))
    key = order.assignment.engine_key
    return LaunchPlan(
        argv=(
            engine.binary or "",
            *("--host", LOOPBACK, "--port", str(order.port)),
            *("--alias", engine.served_name, "--alias", order.start),
            *("--slots", str(engine.slots)),
            *context,
            *engine.arguments,
        ),
        environment=clean_environment(**({} if key is None else {KEY_VARIABLE: key})),
        log_name=f"{order.assignment.assignment}.log",
    )


def identify(body: bytes, question: IdentityQuestion) -> IdentityFinding:
    if question.start is None:
        return identify_by_name(body, question)
    cards = model_cards(body)
    if cards is None:
        return IdentityFinding.UNREADABLE
    proven = {question.served_name, question.start} <= names(cards)
    return IdentityFinding.PROVEN if proven else IdentityFinding.WRONG


REFERENCE: Final = Driver(
    name="reference",
    dialects=dialects,
    health_path="/health",
    metrics_path="/metrics",
    metrics=MetricMap(running="vllm:num_requests_running", waiting="vllm:num_requests_waiting"),
    capabilities=Capabilities(
        unary_departure_seen=True,
        usage_in_stream=True,
    ),
    launch=launch,
    judge_health=status_health,
    identify=identify,
)
