"""``/faults``: shows and changes the faults of an engine that serves. Only there where the start allowed it."""

from lunanexa_apps.engine.errors import ApiError, invalid
from lunanexa_apps.engine.faults import Fault, FaultKind, Faults, parse_fault
from lunanexa_apps.engine.fields import Fields, Json

PATH = "/faults"


def arm_as_told(faults: Faults, values: "dict[str, Json]") -> ApiError | None:
    """``{"faults": ["cut=3,after=1", …]}`` replaces all faults at once; a wrong one changes nothing."""
    listed = Fields(values).get("faults")
    if not isinstance(listed, list):
        return invalid("faults", "'faults' must be a list of strings.")
    read: list[Fault] = []
    for text in listed:
        if not isinstance(text, str):
            return invalid("faults", "'faults' must be a list of strings.")
        try:
            read.append(parse_fault(text))
        except ValueError as error:
            return invalid("faults", f"'faults': {error}.")
    if any(fault.kind is FaultKind.EXIT_AT_START for fault in read):
        return invalid("faults", "'faults': this engine has started already.")
    faults.arm(read)
    return None
