"""What an engine tells of itself: its models and its slots."""

from collections.abc import Sequence

from lunanexa_apps.engine.faults import FaultKind, Struck
from lunanexa_apps.engine.settings import DESCRIPTION, OWNER, EngineSettings
from lunanexa_apps.engine.slots import Slots


def listed_names(names: Sequence[str], struck: Struck) -> Sequence[str]:
    """The names to list: the engine's own unless a fault makes it pose as another engine."""
    if FaultKind.WRONG_MODEL in struck:
        return [f"other-{name}" for name in names]
    if FaultKind.WRONG_START in struck:
        return [names[0], *(f"other-{name}" for name in names[1:])]
    return names


def models_page(settings: EngineSettings, names: Sequence[str], created_s: int) -> dict[str, object]:
    meta = {"description": DESCRIPTION, "max_model_len": settings.context_tokens, "mode": settings.mode.value}
    cards = [
        {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": OWNER,
            "root": names[0],
            "parent": None,
            "max_model_len": settings.context_tokens,
            "meta": meta,
        }
        for name in names
    ]
    return {"object": "list", "data": cards}


def slots_page(settings: EngineSettings, slots: Slots) -> list[dict[str, object]]:
    return [
        {
            "id": number,
            "n_ctx": settings.context_tokens,
            "is_processing": slot is not None,
            "prompt_tokens": slot.prompt_tokens if slot else 0,
            "completion_tokens": slot.completion_tokens if slot else 0,
        }
        for number, slot in enumerate(slots.table())
    ]
