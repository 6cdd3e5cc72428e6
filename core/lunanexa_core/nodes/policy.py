"""What a machine's owner lets be run there, whoever asks: a controller that was taken over is held to it too.

``None`` is no rule, and an empty list allows nothing.
"""

import enum
import re
from collections.abc import Iterable, Sequence
from typing import Final

import attrs

from lunanexa_core.deployment import EngineSpec
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.drivers.specification import parse_engine_url
from lunanexa_core.ids import AssignmentId
from lunanexa_core.southbound.documents import DesiredAssignment

_KEY: Final = re.compile(r"[0-9a-f]{64}\Z")
_HOST: Final = re.compile(r"[A-Za-z0-9.-]{1,253}\Z|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*\Z")


class PolicyRefusal(enum.Enum):
    """Why the owner's policy forbids an assignment. The value is what an operator reads."""

    DRIVER = "policy_driver"
    PROGRAM = "policy_program"
    ADOPTED = "policy_adopted"
    ARGUMENT = "policy_argument"
    REPLICAS = "policy_replicas"
    NO_MEMORY_LIMIT = "policy_no_memory_limit"
    """The policy has ``memory_mib``, and the engine no ``memory_limit_mib``."""
    MEMORY = "policy_memory"


OF_SUMS: Final = frozenset((PolicyRefusal.REPLICAS.value, PolicyRefusal.MEMORY.value))
"""The words for what is too much beside what is there; the others hold whatever else runs."""


@attrs.frozen(kw_only=True)
class NodePolicy:
    """The owner's rules. As made without any, everything is allowed."""

    programs: tuple[str, ...] | None = None
    """Programs that may be started: absolute paths, and folders (with ``/`` at their end) with all that is in them."""
    drivers: tuple[str, ...] | None = None
    adopted: tuple[str, ...] | None = None
    """Where engines may be adopted: ``http://host:port``, or a host with all of its ports."""
    arguments_refused: tuple[str, ...] = ()
    """What no argument of an engine may begin with."""
    memory_mib: int | None = None
    """What all engines that are started may hold together; each must then have a ``memory_limit_mib``."""
    replicas: int | None = None
    """How many there may be at a time, adopted ones too."""
    authority: str | None = None
    """The Ed25519 public key, raw in hex, of who signs what is carried to a machine without a controller."""

    def fault(self) -> tuple[str, str] | None:
        """The first rule that means nothing, and what it must be."""
        for place, program in enumerate(self.programs or ()):
            if not _is_plain(program.removesuffix("/") or program):
                return f"programs[{place}]", "must be an absolute path without '.', '..' and '//'; a folder ends with /"
        for place, driver in enumerate(self.drivers or ()):
            if driver not in DRIVERS:
                return f"drivers[{place}]", f"must be one of {', '.join(DRIVERS)}"
        for place, adopted in enumerate(self.adopted or ()):
            if parse_engine_url(adopted) is None and _HOST.match(adopted) is None:
                return f"adopted[{place}]", "must be http://HOST:PORT, or HOST for all of its ports"
        for place, beginning in enumerate(self.arguments_refused):
            if not beginning:
                return f"arguments_refused[{place}]", "must not be empty: every argument begins so"
        if self.memory_mib is not None and self.memory_mib < 1:
            return "memory_mib", "must be at least 1"
        if self.replicas is not None and self.replicas < 0:
            return "replicas", "must not be negative"
        if self.authority is not None and _KEY.match(self.authority) is None:
            return "authority", "must be a raw Ed25519 public key: 64 hexadecimal digits in lower case"
        return None


NO_RULES: Final = NodePolicy()


def policy_refusal(
    policy: NodePolicy, assignment: DesiredAssignment, *, beside: Sequence[DesiredAssignment] = ()
) -> PolicyRefusal | None:
    """Whether ``assignment`` may run ``beside`` others. An earlier generation of it may be among them, of which it
    takes the place."""
    engine = assignment.engine
    if policy.drivers is not None and engine.driver not in policy.drivers:
        return PolicyRefusal.DRIVER
    if policy.programs is not None and engine.binary is not None and not _starts(policy.programs, engine.binary):
        return PolicyRefusal.PROGRAM
    if policy.adopted is not None and engine.url is not None and not _adopts(policy.adopted, engine.url):
        return PolicyRefusal.ADOPTED
    if any(argument.startswith(policy.arguments_refused) for argument in engine.arguments):
        return PolicyRefusal.ARGUMENT
    places = {one.assignment for one in beside} | {assignment.assignment}
    if policy.replicas is not None and len(places) > policy.replicas:
        return PolicyRefusal.REPLICAS
    if policy.memory_mib is None or engine.url is not None:
        return None
    if _limit_mib(engine) is None:
        return PolicyRefusal.NO_MEMORY_LIMIT
    return PolicyRefusal.MEMORY if _held_mib(policy.memory_mib, (*beside, assignment)) > policy.memory_mib else None


def _starts(programs: Sequence[str], binary: str) -> bool:
    """A path that leads through ``..`` is in no folder."""
    return _is_plain(binary) and any(
        binary.startswith(program) if program.endswith("/") else binary == program for program in programs
    )


def _is_plain(path: str) -> bool:
    return path.startswith("/") and not {"", ".", ".."}.intersection(path[1:].split("/"))


def _adopts(allowed: Sequence[str], url: str) -> bool:
    address = parse_engine_url(url)
    if address is None:
        return False
    host = address.host.lower()
    for one in allowed:
        place = parse_engine_url(one)
        if (host == one.lower()) if place is None else (place.host.lower(), place.port) == (host, address.port):
            return True
    return False


def _limit_mib(engine: EngineSpec) -> int | None:
    """What no engine could keep to is no limit."""
    limit_mib = engine.memory_limit_mib
    return None if limit_mib is None or limit_mib < 1 else limit_mib


def _held_mib(most_mib: int, assignments: Iterable[DesiredAssignment]) -> int:
    """What the started ones may hold at most; who has no limit may hold all there is."""
    held: dict[AssignmentId, int] = {}
    for one in assignments:
        if one.engine.url is None:
            limit_mib = _limit_mib(one.engine)
            held[one.assignment] = max(held.get(one.assignment, 0), most_mib if limit_mib is None else limit_mib)
    return sum(held.values())
