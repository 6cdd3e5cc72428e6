"""State can't change its form, nor ``apply`` what it makes, without a new ``APPLY_VERSION``: a snapshot that another
version made would be taken for one of this version."""

import enum
import json
from pathlib import Path
from typing import Any, Final, NewType, get_args, get_type_hints

import attrs

from lunanexa_core.kernel.apply import APPLY_VERSION
from lunanexa_core.state import State
from lunanexa_core.state_digest import state_digest
from tests.core.test_state_digest import full_state

GOLDEN: Final = Path(__file__).parent / "golden" / "state" / f"apply-{APPLY_VERSION}.json"
_MEND: Final = (
    f"What snapshots hold has changed. If a version with APPLY_VERSION {APPLY_VERSION} was released, raise it (in"
    " lunanexa_core/kernel/apply.py). Then write the new form down: python -m tests.core.test_apply_version"
)


def form() -> dict[str, Any]:
    """The fields and types of state and of all that it holds, and the digest of one with something in every table."""
    types: dict[str, dict[str, str]] = {}
    _describe(State, types)
    return {"types": types, "digest": state_digest(full_state())}


def _describe(kind: Any, types: dict[str, dict[str, str]]) -> None:
    while isinstance(kind, NewType):
        kind = kind.__supertype__
    if isinstance(kind, type) and kind.__name__ not in types:
        if issubclass(kind, enum.Enum):
            types[kind.__name__] = {member.name: str(member.value) for member in kind}
        elif attrs.has(kind):
            hints = get_type_hints(kind)
            fields = types[kind.__name__] = {field.name: str(hints[field.name]) for field in attrs.fields(kind)}
            for name in fields:
                _describe(hints[name], types)
    for argument in get_args(kind):
        _describe(argument, types)


def test_the_form_of_state_is_that_of_the_version() -> None:
    assert GOLDEN.exists(), _MEND
    assert json.loads(GOLDEN.read_text()) == form(), _MEND


def test_the_form_tells_of_everything() -> None:
    """Or a change could go unseen."""
    types = form()["types"]
    assert {field.name for field in attrs.fields(State)} == set(types["State"])
    assert {"ApiKey", "Role", "Receipt", "Settlement", "Outcome", "Usage", "RateWindow", "EngineSpec"} <= set(types)


if __name__ == "__main__":
    GOLDEN.write_text(json.dumps(form(), indent=1, sort_keys=True) + "\n")
