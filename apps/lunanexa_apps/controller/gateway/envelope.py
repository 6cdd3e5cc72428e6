"""A canonical envelope, read into what an engine is asked and on which terms.

The payload is cut out of the text and never written anew: the engine gets the caller's own bytes, with ``model``,
``stream`` and a ceiling on the output added where the payload leaves them out.
"""

import json
from typing import Any, Final

import attrs

from lunanexa_apps.codec import CodecError, structure
from lunanexa_apps.controller.unreadable import unreadable
from lunanexa_core.contract.envelope import WorkloadEnvelope, dialect_of, terms_of_envelope
from lunanexa_core.openai.request_rules import request_rules
from lunanexa_core.openai.scanning import MalformedJson, Member, ends_at, members, utf8_fault
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import Terms
from lunanexa_core.workload import Dialect

_LLAMA_LIMIT: Final = "n_predict"
"""llama-server's own name of the output's limit, which it believes before all others."""


@attrs.frozen(kw_only=True)
class Payload:
    """The body for an engine, in its dialect, and the caller's terms."""

    dialect: Dialect
    body: bytes
    terms: Terms


def read_envelope(body: bytes, headers: Terms, *, stream: bool) -> Payload | Refusal:
    """Reads an envelope. A refusal names the byte where UTF-8 or JSON breaks, or the field at fault."""
    wrong = utf8_fault(body)
    if wrong is not None:
        return _invalid(f"The body is not UTF-8: wrong byte at position {wrong}.")
    try:
        found = _members(body)
    except MalformedJson as error:
        return _invalid(f"The body is not valid JSON: {error} at byte position {error.position}.")
    if isinstance(found, Refusal):
        return found
    payload = found.get("payload")
    given = _given(payload) if payload is not None and payload.opening == b"{" else None
    document = {name: member.value for name, member in found.items()}
    if given is not None:
        document["payload"] = {}  # Its members are the engine's to judge.
    try:
        envelope = structure(WorkloadEnvelope, document, closed=True)
    except CodecError as error:
        return unreadable(error)
    assert payload is not None
    assert given is not None
    dialect = dialect_of(envelope)
    if isinstance(dialect, Refusal):
        return dialect
    terms = terms_of_envelope(envelope, headers)
    if isinstance(terms, Refusal):
        return terms
    return _payload(envelope, dialect, terms, given, payload, stream=stream)


def _members(body: bytes) -> dict[str, Member] | Refusal:
    found: dict[str, Member] = {}
    for member in members(body):
        if isinstance(member, int):
            ends_at(body, member + 1)
        elif member.name in found:
            return _invalid(f"{member.name[:256]!r} is given twice.", member.name[:256])
        else:
            found[member.name] = member
    return found


def _given(payload: Member) -> dict[str, Any]:
    """What the payload says already: its members, of which the large ones are not built."""
    return {member.name: member.value for member in members(payload.data, payload.start) if isinstance(member, Member)}


def _payload(
    envelope: WorkloadEnvelope, dialect: Dialect, terms: Terms, given: dict[str, Any], member: Member, *, stream: bool
) -> Payload | Refusal:
    rules = request_rules(dialect)
    expected: dict[str, Any] = {"model": envelope.model}
    if rules.streaming is not None:
        expected[rules.streaming.member] = rules.streaming.on if stream else rules.streaming.off
    elif stream:
        return _invalid(f"{dialect.value} can't be streamed; post to /v1/workloads.", "dialect")
    for name, value in expected.items():
        if given.get(name, value) != value:
            return _invalid(f"payload.{name} contradicts the request; leave it out.", f"payload.{name}")
    limit = _output_limit(dialect, terms.ceiling.output_units, given)
    if isinstance(limit, Refusal):
        return limit
    size_units = -(-(member.end - member.start) // rules.bytes_a_token)
    if terms.ceiling.input_units is not None and size_units > terms.ceiling.input_units:
        return _invalid(
            f"The payload may be {size_units} units, more than resource_ceiling.input_units.",
            "resource_ceiling.input_units",
        )
    if not stream and rules.streaming is not None:
        del expected[rules.streaming.member]  # What an engine does unless it is told otherwise.
    added = {name: value for name, value in (expected | limit).items() if name not in given}
    head = json.dumps(added, separators=(",", ":"))[1:-1]
    comma = "," if head and given else ""
    rest = memoryview(member.data)[member.start + 1 : member.end]
    return Payload(dialect=dialect, body=b"".join((f"{{{head}{comma}".encode(), rest)), terms=terms)


def _output_limit(dialect: Dialect, units: int | None, given: dict[str, Any]) -> dict[str, int] | Refusal:
    """What is to be added so that the engine keeps the ceiling."""
    limits = request_rules(dialect).limits
    if units is None:
        return {}
    if not limits:
        return _invalid(
            f"resource_ceiling.output_units has no meaning for {dialect.value}.", "resource_ceiling.output_units"
        )
    if given.get(_LLAMA_LIMIT) is not None:
        return _invalid(f"payload.{_LLAMA_LIMIT} would pass the ceiling; leave it out.", f"payload.{_LLAMA_LIMIT}")
    stated = [name for name in limits if given.get(name) is not None]
    for name in stated:
        # To some engines a negative number is no limit.
        if type(given[name]) is int and not 0 <= given[name] <= units:
            return _invalid(f"payload.{name} is more than resource_ceiling.output_units.", f"payload.{name}")
    if stated:
        return {}
    oldest = limits[-1]  # The one name that every engine knows.
    if oldest in given:
        return _invalid(f"payload.{oldest} must be a number under the ceiling, or left out.", f"payload.{oldest}")
    return {oldest: units}


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(outcome=Outcome.INVALID_REQUEST, message=message, param=param)
