"""Reading a JSON request field by field: the first fault is kept, with the field's name, and told once.

``null`` means absent, as OpenAI's clients send it. A field that nobody reads is ignored, as real engines do.
"""

import json
import math
from collections.abc import Mapping
from typing import NoReturn, TypeAlias

from lunanexa_apps.engine.errors import ApiError, invalid

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


def parse_object(body: bytes) -> "dict[str, Json] | ApiError":
    """The JSON object in ``body``, or a 400 that says where it stops being one."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        return _not_json(f"invalid UTF-8 at byte {error.start}")
    try:
        value: Json = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        return _not_json(f"{error.msg} at character {error.pos} (line {error.lineno}, column {error.colno})")
    except RecursionError:
        return _not_json("nested too deeply")
    except UnicodeEncodeError:
        return _not_json("a string holds half of a surrogate pair")
    except ValueError as error:
        # A constant such as NaN, or an integer with more digits than the interpreter converts.
        return _not_json(str(error).split(";", 1)[0])
    if not isinstance(value, dict):
        return _not_json("the body must be an object")
    return value


def _not_json(reason: str) -> ApiError:
    return ApiError(status=400, message=f"Could not parse the request body as JSON: {reason}.", code="invalid_json")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ValueError("a number is too large")
    return value


class Fields:
    """Typed access to one object; ``prefix`` names it in refusals. After all reads look at ``fault``."""

    def __init__(self, values: "Mapping[str, Json]", prefix: str = "") -> None:
        self._values = values
        self._prefix = prefix
        self.fault: ApiError | None = None

    def name(self, field: str) -> str:
        return f"{self._prefix}{field}"

    def get(self, field: str) -> "Json":
        return self._values.get(field)

    def refuse(self, field: str, message: str, code: str | None = None) -> None:
        if self.fault is None:
            self.fault = invalid(self.name(field), f"'{self.name(field)}' {message}", code)

    def text(self, field: str, default: str | None = None) -> str:
        value = self.get(field)
        if isinstance(value, str):
            return value
        if value is not None:
            self.refuse(field, "must be a string.")
        elif default is None:
            self.refuse(field, "is required.")
        return default or ""

    def flag(self, field: str) -> bool:
        value = self.get(field)
        if value is not None and not isinstance(value, bool):
            self.refuse(field, "must be a boolean.")
        return value is True

    def integer(self, field: str, low: int, high: int) -> int | None:
        value = self.get(field)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(field, "must be an integer.")
            return None
        if not low <= value <= high:
            self.refuse(field, f"must be at least {low}." if value < low else f"must be at most {high}.")
            return None
        return value

    def number(self, field: str, low: float, high: float, default: float) -> float:
        value = self.get(field)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.refuse(field, "must be a number.")
            return default
        if not low <= value <= high:
            self.refuse(field, f"must be between {low:g} and {high:g}.")
            return default
        return float(value)

    def object(self, field: str) -> "Fields | None":
        """The object in ``field`` as Fields of its own; take its fault over with ``adopt``."""
        value = self.get(field)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(field, "must be an object.")
            return None
        return Fields(value, f"{self.name(field)}.")

    def adopt(self, inner: "Fields") -> None:
        if self.fault is None:
            self.fault = inner.fault

    def unsupported(self, *fields: str) -> None:
        """Refuse what would change the answer's form and that this engine can't do."""
        for field in fields:
            value = self.get(field)
            if value is not None and value is not False:
                self.refuse(field, "is not supported by the reference engine.", "unsupported_parameter")
