"""The published contracts are those that are served, and the golden fixtures are read as they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from lunanexa_apps.codec import CodecError, structure, unstructure
from lunanexa_apps.controller.gateway.envelope import Payload, read_envelope
from lunanexa_core.contract.catalog import SOUTHBOUND, contract_schemas
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import Terms

DOCS = Path(__file__).parent.parent / "docs"
FIXTURES = DOCS / "contracts" / "fixtures"
SCHEMA_TEXTS: dict[str, Any] = contract_schemas()
SCHEMAS = {name: jsonschema_rs.validator_for(schema) for name, schema in SCHEMA_TEXTS.items()}


def fixtures(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FIXTURES / f"{name}.json").read_text())
    return found


def test_what_is_generated_is_up_to_date() -> None:
    checked = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr.decode()


@pytest.mark.parametrize(("name", "envelope"), fixtures("envelopes-accepted").items())
def test_accepted_envelopes(name: str, envelope: dict[str, Any]) -> None:
    SCHEMAS["workload-envelope"].validate(envelope)
    assert isinstance(read_envelope(json.dumps(envelope).encode(), Terms(), stream=False), Payload), name


@pytest.mark.parametrize(("name", "case"), fixtures("envelopes-refused").items())
def test_refused_envelopes(name: str, case: dict[str, Any]) -> None:
    refusal = read_envelope(json.dumps(case["envelope"]).encode(), Terms(), stream=False)
    assert isinstance(refusal, Refusal), name
    assert refusal.param == case["param"]
    assert SCHEMAS["workload-envelope"].is_valid(case["envelope"]) != case["schema"]


@pytest.mark.parametrize(("name", "response"), fixtures("responses").items())
def test_responses(name: str, response: dict[str, Any]) -> None:
    SCHEMAS["workload-response"].validate(response)
    assert (response["error"] is None) == (response["state"] == "Succeeded"), name


@pytest.mark.parametrize("name", SOUTHBOUND)
def test_what_controller_and_node_say_is_read_and_written_as_before(name: str) -> None:
    """The fixtures are of the first version and stay as they are: new members are optional."""
    for document in fixtures("southbound")[name]:
        SCHEMAS[name].validate(document)
        value = structure(SOUTHBOUND[name], document)
        written = unstructure(value)
        SCHEMAS[name].validate(written)
        assert holds(written, document), written
        assert structure(SOUTHBOUND[name], {**document, "of_a_later_version": {"a": 1}}) == value
        for member in SCHEMA_TEXTS[name]["$defs"][SOUTHBOUND[name].__name__]["required"]:
            lacking = {key: found for key, found in document.items() if key != member}
            assert not SCHEMAS[name].is_valid(lacking)
            with pytest.raises(CodecError, match=member):
                structure(SOUTHBOUND[name], lacking)


def holds(value: Any, part: Any) -> bool:
    """Whether ``part`` is in ``value``: of objects members may be missing, all else is the same."""
    if isinstance(part, dict):
        return isinstance(value, dict) and all(name in value and holds(value[name], one) for name, one in part.items())
    if isinstance(part, list):
        return isinstance(value, list) and len(value) == len(part) and all(map(holds, value, part))
    return bool(value == part)


@pytest.mark.parametrize("name", ["client-frame", "server-frame"])
def test_frames(name: str) -> None:
    for frame in fixtures("frames")[name]:
        SCHEMAS[name].validate(frame)
