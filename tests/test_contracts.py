"""The published contracts are those that are served, and the golden fixtures are read as they say."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from lunanexa_apps.controller.gateway.envelope import Payload, read_envelope
from lunanexa_core.contract.catalog import contract_schemas
from lunanexa_core.outcomes import Refusal
from lunanexa_core.terms import Terms

DOCS = Path(__file__).parent.parent / "docs"
FIXTURES = DOCS / "contracts" / "fixtures"
SCHEMAS = {name: jsonschema_rs.validator_for(schema) for name, schema in contract_schemas().items()}


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


@pytest.mark.parametrize("name", ["client-frame", "server-frame"])
def test_frames(name: str) -> None:
    for frame in fixtures("frames")[name]:
        SCHEMAS[name].validate(frame)
