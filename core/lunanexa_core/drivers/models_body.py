"""Reading ``GET /v1/models`` of a foreign program: everything in it is checked, nothing is believed.

Source: https://platform.openai.com/docs/api-reference/models/list
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lunanexa_core.drivers.driver import IdentityFinding, IdentityQuestion

ModelCard = Mapping[str, Any]


def model_cards(body: bytes) -> Sequence[ModelCard] | None:
    """The cards of a model list, ``None`` when ``body`` is none. Not strict: it is no document of ours."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    cards = document.get("data") if isinstance(document, dict) else None
    return [card for card in cards if isinstance(card, dict)] if isinstance(cards, list) else None


def texts(card: ModelCard, member: str) -> frozenset[str]:
    """The strings in a list member of a card; empty when there is no such list."""
    values = card.get(member)
    return frozenset(value for value in values if isinstance(value, str)) if isinstance(values, list) else frozenset()


def names(cards: Sequence[ModelCard]) -> frozenset[str]:
    """The ids of all cards."""
    return frozenset(card["id"] for card in cards if isinstance(card.get("id"), str))


def identify_by_name(body: bytes, question: IdentityQuestion) -> IdentityFinding:
    """For engines without a slot for a start id: the served name is listed, or the engine is another."""
    cards = model_cards(body)
    if cards is None:
        return IdentityFinding.UNREADABLE
    return IdentityFinding.NO_SLOT if question.served_name in names(cards) else IdentityFinding.WRONG
