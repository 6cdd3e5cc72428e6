"""Any OpenAI-compatible server that runs already: adopted where it answers, never started or stopped.

Nothing is assumed of it. It has no slot for a start id: what owns its listening socket, or an operator's
word, must stand for its identity.
"""

from typing import Final

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.driver import Driver, Health
from lunanexa_core.drivers.models_body import identify_by_name, model_cards
from lunanexa_core.drivers.specification import adopt_only
from lunanexa_core.workload import Dialect


def dialects(_engine: EngineSpec) -> frozenset[Dialect]:
    """What every such server has, as far as its model goes."""
    return frozenset({Dialect.CHAT, Dialect.COMPLETIONS, Dialect.EMBEDDINGS})


def judge_health(status: int, body: bytes) -> Health:
    """The model list is the health path, because it is the only one that all such servers have."""
    match status:
        case 200:
            return Health.READY if model_cards(body) is not None else Health.BROKEN
        case 429 | 502 | 503 | 504:
            return Health.LOADING
        case _:
            # 401 and 403 are a wrong key: it answers, and no waiting makes it ready.
            return Health.BROKEN


GENERIC_OPENAI: Final = Driver(
    name="generic_openai",
    dialects=dialects,
    health_path="/v1/models",
    launch=adopt_only,
    judge_health=judge_health,
    identify=identify_by_name,
)
