"""Envelopes: what is read of them, and that the payload reaches an engine as it came."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lunanexa_apps.controller.gateway.envelope import Payload, read_envelope
from lunanexa_core.openai.request import peek_request
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.terms import DataPolicy, EvaluationCapture, LatencyClass, RetainFor, Terms
from lunanexa_core.workload import DataClass, Dialect, Priority

PAYLOAD = {"messages": [{"role": "user", "content": "Once"}]}
ENVELOPE: dict[str, Any] = {"capability": "TextGenerate", "model": "tiny", "payload": PAYLOAD}
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def read(document: object, headers: Terms | None = None, *, stream: bool = False) -> Payload | Refusal:
    return read_envelope(json.dumps(document).encode(), headers or Terms(), stream=stream)


def test_the_least_envelope() -> None:
    payload = read(ENVELOPE)
    assert isinstance(payload, Payload)
    assert payload.dialect is Dialect.CHAT
    assert payload.terms == Terms()
    assert json.loads(payload.body) == {"model": "tiny", **PAYLOAD}


def test_every_term() -> None:
    payload = read(
        {
            **ENVELOPE,
            "contract": "lunanexa.v1",
            "workload_id": "order-17",
            "idempotency_key": "once",
            "tenant": "default",
            "dialect": "completions",
            "payload": {"prompt": "Once"},
            "data_policy": {"classification": "Restricted", "retention": {"kind": "RetainFor", "ms": 5}},
            "deadline_ms": 1_500,
            "priority": "Critical",
            "latency_class": "Batch",
            "resource_ceiling": {"input_units": 50, "output_units": 7, "runtime_ms": 900},
            "output_format": "Engine",
            "trace": TRACE,
        },
        stream=True,
    )
    assert isinstance(payload, Payload)
    terms = payload.terms
    assert (terms.workload, terms.idempotency_key, terms.tenant) == ("order-17", "once", "default")
    assert (terms.deadline_ms, terms.priority, terms.latency) == (1_500, Priority.CRITICAL, LatencyClass.BATCH)
    assert terms.data == DataPolicy(classification=DataClass.RESTRICTED, retention=RetainFor(5))
    assert (terms.ceiling.input_units, terms.ceiling.output_units, terms.ceiling.runtime_ms) == (50, 7, 900)
    assert terms.trace == TRACE
    assert json.loads(payload.body) == {"model": "tiny", "stream": True, "max_tokens": 7, "prompt": "Once"}


def test_headers_say_what_the_envelope_leaves_out() -> None:
    headers = Terms(idempotency_key="h", deadline_ms=7, priority=Priority.BACKGROUND, trace=TRACE)
    payload = read(ENVELOPE, headers)
    assert isinstance(payload, Payload)
    assert payload.terms == headers
    payload = read({**ENVELOPE, "deadline_ms": 9, "priority": "Interactive"}, headers)
    assert isinstance(payload, Payload)
    assert (payload.terms.deadline_ms, payload.terms.priority) == (9, Priority.INTERACTIVE)


CONSENT = {"kind": "EvaluationCapture", "consent": "rcp_1"}


def test_training_reuse_needs_consent() -> None:
    payload = read({**ENVELOPE, "data_policy": {"retention": CONSENT, "allow_training_reuse": True}})
    assert isinstance(payload, Payload)
    assert payload.terms.data.retention == EvaluationCapture("rcp_1")
    assert payload.terms.data.allow_training_reuse


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"capability": None}, "capability"),
        ({"capability": "Text"}, "capability"),
        ({"model": 7}, "model"),
        ({"model": ""}, "model"),
        ({"payload": []}, "payload"),
        ({"payload": {**PAYLOAD, "model": "other"}}, "payload.model"),
        ({"payload": {**PAYLOAD, "stream": True}}, "payload.stream"),
        ({"payload": {**PAYLOAD, "max_tokens": 9}, "resource_ceiling": {"output_units": 8}}, "payload.max_tokens"),
        ({"payload": {**PAYLOAD, "max_tokens": -1}, "resource_ceiling": {"output_units": 8}}, "payload.max_tokens"),
        ({"payload": {**PAYLOAD, "max_tokens": None}, "resource_ceiling": {"output_units": 8}}, "payload.max_tokens"),
        ({"payload": {**PAYLOAD, "n_predict": 9}, "resource_ceiling": {"output_units": 8}}, "payload.n_predict"),
        ({"contract": "lunanexa.v2"}, "contract"),
        ({"workload_id": "a b"}, "workload_id"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"tenant": "ä"}, "tenant"),
        ({"dialect": "embeddings"}, "dialect"),
        ({"dialect": "gopher"}, "dialect"),
        ({"deadline_ms": 0}, "deadline_ms"),
        ({"deadline_ms": True}, "deadline_ms"),
        ({"deadline_ms": 1.5}, "deadline_ms"),
        ({"priority": "normal"}, "priority"),
        ({"latency_class": "Soon"}, "latency_class"),
        ({"resource_ceiling": {"output_units": 0}}, "resource_ceiling.output_units"),
        ({"resource_ceiling": {"input_units": 1}}, "resource_ceiling.input_units"),
        ({"resource_ceiling": {"runtime_ms": -1}}, "resource_ceiling.runtime_ms"),
        ({"resource_ceiling": {"accelerator_memory_mib": 1}}, "resource_ceiling.accelerator_memory_mib"),
        ({"resource_ceiling": {"hours": 1}}, "resource_ceiling.hours"),
        ({"output_format": "Xml"}, "output_format"),
        ({"trace": "00-1"}, "trace"),
        ({"data_policy": {"classification": "Secret"}}, "data_policy.classification"),
        ({"data_policy": {"allow_cache": True}}, "data_policy.allow_cache"),
        ({"data_policy": {"retention": {"kind": "RetainFor"}}}, "data_policy.retention.ms"),
        ({"data_policy": {"retention": {"kind": "RetainFor", "ms": 0}}}, "data_policy.retention.ms"),
        ({"data_policy": {"retention": {"kind": "Ephemeral", "ms": 1}}}, "data_policy.retention"),
        ({"data_policy": {"retention": {"kind": "EvaluationCapture"}}}, "data_policy.retention.consent"),
        (
            {"data_policy": {"retention": {"kind": "RetainFor", "ms": 1}, "allow_training_reuse": True}},
            "data_policy.allow_training_reuse",
        ),
    ],
)
def test_what_is_wrong_is_refused_by_its_name(change: dict[str, Any], param: str) -> None:
    refusal = read({**ENVELOPE, **change})
    assert isinstance(refusal, Refusal)
    assert (refusal.outcome, refusal.param) == (Outcome.INVALID_REQUEST, param)


def test_a_capability_that_no_driver_has_is_unsupported() -> None:
    for capability in ("ImageGenerate", "VideoGenerate", "ModelEvaluate", "ModelTrain"):
        refusal = read({**ENVELOPE, "capability": capability})
        assert isinstance(refusal, Refusal)
        assert refusal.outcome is Outcome.UNSUPPORTED_ENDPOINT


def test_an_unknown_member_and_two_keys_are_refused() -> None:
    refusal = read({**ENVELOPE, "prioritty": "Normal"})
    assert isinstance(refusal, Refusal)
    assert "prioritty" in refusal.message
    refusal = read({**ENVELOPE, "idempotency_key": "a"}, Terms(idempotency_key="b"))
    assert isinstance(refusal, Refusal)
    assert refusal.param == "idempotency_key"


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"model":"a","model":"b"}', b"\xff", b"null", b'{"a":1}x'])
def test_what_is_no_document_is_refused(body: bytes) -> None:
    refusal = read_envelope(body, Terms(), stream=False)
    assert isinstance(refusal, Refusal)
    assert refusal.outcome is Outcome.INVALID_REQUEST


@given(payload=st.dictionaries(st.text(max_size=6), json_values, max_size=4), stream=st.booleans())
def test_a_payload_passes_byte_for_byte(payload: dict[str, Any], stream: bool) -> None:
    text = json.dumps(payload, ensure_ascii=False, separators=(" ,", " : "))
    try:
        raw = text.encode()
    except UnicodeEncodeError:
        return
    envelope = b'{"capability":"TextGenerate","payload":' + raw + b',"model":"tiny"}'
    found = read_envelope(envelope, Terms(), stream=stream)
    if isinstance(found, Refusal):
        assert payload.keys() & {"model", "stream"}
        return
    assert found.body.endswith(raw.lstrip()[1:])
    sent = json.loads(found.body)
    assert {name: value for name, value in sent.items() if name in payload} == json.loads(raw)
    assert sent["model"] == "tiny"
    assert bool(sent.get("stream")) == stream
    head = peek_request(found.dialect, found.body)
    assert isinstance(head, Refusal) or (head.model, head.stream) == ("tiny", stream)


@given(document=json_values | st.fixed_dictionaries(dict.fromkeys(ENVELOPE, json_values)))
def test_any_json_is_read_or_refused(document: object) -> None:
    try:
        body = json.dumps(document).encode()
    except UnicodeEncodeError:
        return
    assert isinstance(read_envelope(body, Terms(), stream=False), Payload | Refusal)
