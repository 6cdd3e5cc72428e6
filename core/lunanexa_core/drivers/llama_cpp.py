"""llama.cpp's ``llama-server`` (flags and conduct as of its October 2026 sources, tried on a CPU).

Its traps: without ``-m`` it becomes a router that looks healthy; any ``LLAMA_ARG_*`` in the environment
applies; ``--fit`` shrinks the context silently; it may hang after SIGTERM until its clients close, and
ends at once on the second; a unary client's departure goes unseen while other requests produce tokens.
Source: https://github.com/ggml-org/llama.cpp/tree/master/tools/server
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
    StopPolicy,
)
from lunanexa_core.drivers.models_body import identify_by_name, model_cards, texts
from lunanexa_core.drivers.specification import LOOPBACK, check_launch, clean_environment, status_health
from lunanexa_core.workload import Dialect

KEY_VARIABLE: Final = "LLAMA_API_KEY"
LIBRARY_PATH: Final = "LD_LIBRARY_PATH"


_TEXT: Final = frozenset({Dialect.CHAT, Dialect.COMPLETIONS, Dialect.RESPONSES, Dialect.MESSAGES})
_EMBEDDINGS: Final = frozenset(("--embedding", "--embeddings"))
_RERANKING: Final = frozenset(("--rerank", "--reranking"))


def dialects(engine: EngineSpec) -> frozenset[Dialect]:
    """Embeddings and rerank answer 501 without their flags. A model that ranks has no words. Whether a model hears
    is known to its files alone, so transcripts are not promised."""
    arguments = frozenset(engine.arguments)
    if arguments & _RERANKING:
        return frozenset({Dialect.RERANK})
    return _TEXT | {Dialect.EMBEDDINGS} if arguments & _EMBEDDINGS else _TEXT


def launch(order: LaunchInput) -> LaunchPlan | LaunchRefusal:
    engine = order.assignment.engine
    refusal = check_launch(engine, model_needed=True)
    if refusal is not None:
        return refusal
    # -c is the total of all slots; the specification says what one request may have.
    context = () if engine.context_tokens is None else ("-c", str(engine.context_tokens * engine.slots))
    binary = engine.binary or ""
    key = order.assignment.engine_key
    # Builds that are unpacked rather than installed keep their libraries beside the program.
    environment = clean_environment(**{LIBRARY_PATH: binary.rpartition("/")[0]})
    return LaunchPlan(
        argv=(
            binary,
            *("-m", engine.model_path or ""),
            *("--alias", engine.served_name, "--tags", order.start),
            *("--host", LOOPBACK, "--port", str(order.port)),
            *("-np", str(engine.slots)),
            *context,
            *("--metrics", "--slots", "--offline", "--no-ui"),
            *engine.arguments,
        ),
        environment=environment if key is None else environment | {KEY_VARIABLE: key},
        log_name=f"{order.assignment.assignment}.log",
    )


def identify(body: bytes, question: IdentityQuestion) -> IdentityFinding:
    if question.start is None:
        return identify_by_name(body, question)
    cards = model_cards(body)
    if cards is None:
        return IdentityFinding.UNREADABLE
    for card in cards:
        if card.get("id") == question.served_name and question.start in texts(card, "tags"):
            return IdentityFinding.PROVEN
    return IdentityFinding.WRONG


LLAMA_CPP: Final = Driver(
    name="llama_cpp",
    dialects=dialects,
    health_path="/health",
    metrics_path="/metrics",
    metrics=MetricMap(running="llamacpp:requests_processing", waiting="llamacpp:requests_deferred"),
    capabilities=Capabilities(
        unary_departure_seen=False,
        usage_in_stream=True,
    ),
    stop=StopPolicy(second_terminate=True),
    launch=launch,
    judge_health=status_health,
    identify=identify,
)
