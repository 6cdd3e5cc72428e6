"""Every route asked as the published document says, and as it does not: what comes back is documented.

schemathesis draws the requests and judges the answers; they travel through the edge in memory, on virtual time.
"""

from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pytest
import requests
import schemathesis
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from trio.testing import MockClock

from lunanexa_adapters.asgi.openapi import openapi_document
from lunanexa_adapters.asgi.route import Plane, Route
from lunanexa_adapters.asgi.routes import ROUTES
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import KEY, OPERATOR_KEY, Edge, edge
from tests.apps.gateway_fleet import NEWCOMER
from tests.apps.node_party import mint

pytestmark = pytest.mark.slow

SCHEMA = schemathesis.openapi.from_dict(openapi_document("0.1.0", ROUTES))
EXAMPLES: Final = 25
BASE: Final = "http://lunanexa"
CHECKS: Final = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
SECRETS: Final = {
    Plane.PROBES: [],
    Plane.DATA: [KEY],
    Plane.OPERATOR: [OPERATOR_KEY],
    Plane.NODE: [],
}


class Asked:
    """One request as schemathesis drew it, sent by somebody who is allowed to."""

    def __init__(self, route: Route, case: Case[Any], one: Edge) -> None:
        self.request = requests.Request(**case.as_transport_kwargs(base_url=BASE)).prepare()
        url = urlsplit(str(self.request.url))
        told = self.request.body or b""
        body = told.encode() if isinstance(told, str) else told
        assert isinstance(body, bytes)
        headers = {name.lower(): _bytes(value) for name, value in self.request.headers.items()}
        if route.plane is Plane.NODE and "x-lunanexa-signature" in headers:
            # Else the body would be read by nobody.
            document = one.newcomer.signer.sign(body)
            headers["x-lunanexa-key-id"] = document.key_id.encode()
            headers["x-lunanexa-signature"] = document.signature.hex().encode()
        pairs = [(name.encode(), value) for name, value in headers.items() if name != "authorization"]
        self.client = Client(
            str(self.request.method),
            unquote(url.path),
            body,
            [*SECRETS[route.plane], *pairs],
            query=url.query.encode(),
            peer=one.newcomer.peer if route.plane is Plane.NODE else None,
        )
        self.client.scope["raw_path"] = url.path.encode()

    def response(self) -> Response:
        headers = {name: [value] for name, value in self.client.headers.items()}
        return Response(self.client.status, headers, self.client.body, self.request, elapsed=0.0, verify=False)


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1")


def lead_further(case: Case[Any], public_key: str) -> None:
    """Random names are nobody's, and random engines run nowhere; with these the request gets further."""
    there = {"id": "tiny", "node": NEWCOMER, "name": "d1", "key": "key_1"}
    for name in case.path_parameters:
        case.path_parameters[name] = there.get(name, case.path_parameters[name])
    if isinstance(case.body, dict):
        body: dict[str, Any] = _without_fractions(case.body)
        given = {
            "model": "tiny",
            "messages": [{"role": "user", "content": "Once"}],
            "prompt": "Once",
            "input": ["Once"],
            "node": NEWCOMER,
            "public_key": public_key,
            "deployment": "d1",
            "alias": "tiny",
        }
        body |= {name: value for name, value in given.items() if name in body}
        if isinstance(body.get("engine"), dict):
            body["engine"] |= {"driver": "reference", "binary": "/bin/true", "url": None}
        case.body = body


def keep_to_the_offer(case: Case[Any]) -> None:
    """A retention that is not on offer is a 503 by its definition, and no fault of the server."""
    asked = case.headers.get("x-lunanexa-retain-ms", "")
    if asked.isascii() and asked.isdigit():
        case.headers["x-lunanexa-retain-ms"] = str(int(asked) % 1_000)
    policy = case.body.get("data_policy") if isinstance(case.body, dict) else None
    if isinstance(policy, dict) and policy.get("retention") not in (None, {"kind": "Ephemeral"}):
        policy["retention"] = {"kind": "RetainFor", "ms": 1_000}


def _without_fractions(value: Any) -> Any:
    """JSON Schema takes 1.0 for an integer; our documents do not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_without_fractions(item) for item in value]
    return {name: _without_fractions(item) for name, item in value.items()} if isinstance(value, dict) else value


async def enrol(one: Edge) -> None:
    node = one.newcomer
    document = node.enrolment(await mint(one.world.kernel, NEWCOMER))
    headers = [
        (b"x-lunanexa-key-id", document.key_id.encode()),
        (b"x-lunanexa-signature", document.signature.hex().encode()),
    ]
    client = await Client("POST", f"/node/v1/{NEWCOMER}/enrol", document.payload, headers).call(one.nodes)
    node.accept(client.body)


ASKED: Final = [
    pytest.param(route, mode, id=f"{route.method} {route.path} {mode.value}")
    for route in ROUTES
    for mode in GenerationMode
    # Without parameters and body there is nothing to break.
    if mode is GenerationMode.POSITIVE or route.parameters or route.body is not None
]


@pytest.mark.parametrize(("route", "mode"), ASKED)
def test_what_comes_back_is_documented(route: Route, mode: GenerationMode) -> None:
    operation = SCHEMA[route.path][route.method.upper()]

    @settings(max_examples=EXAMPLES)
    @given(case=operation.as_strategy(generation_mode=mode), existing=st.booleans())
    def ask(case: Case[Any], existing: bool) -> None:
        clock = MockClock(autojump_threshold=0)
        keep_to_the_offer(case)

        async def run() -> Asked:
            async with edge(clock) as one:
                if existing and route.plane is Plane.NODE and not route.path.endswith("enrol"):
                    await enrol(one)
                if existing:
                    lead_further(case, one.newcomer.signer.public_key)
                asked = Asked(route, case, one)
                with trio.fail_after(600):
                    await asked.client.call(one.nodes if route.plane is Plane.NODE else one.root)
                return asked

        asked = trio.run(run, clock=clock)
        client = asked.client
        assert client.complete
        engines_own = "x-lunanexa-overhead-ms" in client.headers
        if client.status >= 400 and not engines_own:
            client.error()
        case.validate_response(asked.response(), checks=CHECKS)

    ask()
