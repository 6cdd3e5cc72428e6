"""Keys over HTTP: made with a secret that is shown once, seen, used, revoked."""

from typing import Any

import pytest
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_core.contract.keys import KeyDocument, KeyList, KeyMade
from lunanexa_core.keys import weak_secret
from tests.adapters.asgi_driver import Client
from tests.adapters.edge import JSON, KEY, edge
from tests.adapters.test_asgi_control import ask
from tests.core.builders import SECRET

KEYS = "/admin/v1/keys"
CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 2}


async def test_a_key_from_its_making_to_its_end(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        asked = {"name": "farm", "aliases": ["tiny"], "requests_per_minute": 1, "expires_in_ms": 60_000}
        made = await ask("POST", KEYS, asked).call(one.root)
        assert made.status == 200
        assert made.headers["cache-control"] == "no-store"
        document = made.json()
        structure(KeyMade, document, closed=True)
        secret, key = document.pop("secret"), document["key"]
        assert secret.startswith("lnx_")
        assert weak_secret(secret) is None
        assert document["expires_wall_ms"] == document["created_wall_ms"] + 60_000
        assert document["requests_window"] == {"limit": 1, "remaining": 1, "reset_ms": 0}

        def chat() -> Client:
            headers = [(b"authorization", b"Bearer " + secret.encode()), JSON]
            return ask("POST", "/v1/chat/completions", CHAT, headers)

        answer = await chat().call(one.root)
        assert (answer.status, answer.headers["x-ratelimit-remaining-requests"]) == (200, "0")
        limited = await chat().call(one.root)
        assert (limited.status, limited.error()["code"]) == (429, "rate_limited")
        assert limited.headers["x-ratelimit-limit-requests"] == "1"
        assert limited.headers["x-ratelimit-reset-requests"] == f"{limited.headers['retry-after']}s"
        shown = await ask("GET", f"{KEYS}/{key}").call(one.root)
        usage = shown.json()["usage"]
        assert (usage["requests"], usage["succeeded"], usage["output_tokens"]) == (1, 1, 2)
        assert shown.json()["requests_window"]["remaining"] == 0
        listed = await ask("GET", KEYS).call(one.root)
        structure(KeyList, listed.json(), closed=True)
        assert shown.json() in listed.json()["data"]
        for told in (shown, listed):
            assert secret not in told.body.decode()
        revoked = await ask("DELETE", f"{KEYS}/{key}").call(one.root)
        assert revoked.json() == {"key": key, "revoked": True}
        assert (await chat().call(one.root)).status == 401
        gone = await ask("GET", f"{KEYS}/{key}").call(one.root)
        assert (gone.status, gone.error()["code"]) == (404, "not_found")
        assert (await ask("DELETE", f"{KEYS}/{key}").call(one.root)).status == 404


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"requests_per_minute": "2"}, "requests_per_minute"),
        ({"tokens_per_minute": -1}, "tokens_per_minute"),
        ({"aliases": "tiny"}, "aliases"),
        ({"aliases": ["\n"]}, "aliases"),
        ({"name": 7}, "name"),
        ({"expires_in_ms": 0}, "expires_in_ms"),
        ({"expires_in_ms": 10**15}, "expires_in_ms"),
    ],
)
async def test_a_bad_field_is_named(autojump_clock: MockClock, body: dict[str, Any], param: str) -> None:
    async with edge(autojump_clock) as one:
        refused = await ask("POST", KEYS, body).call(one.root)
        assert refused.status == 400
        assert refused.error()["param"] == param


async def test_an_unknown_field_or_no_object_is_refused(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        bodies: list[Any] = [{"colour": "red"}, [], b"{", b""]
        for body in bodies:
            refused = await ask("POST", KEYS, body).call(one.root)
            assert (refused.status, refused.error()["code"]) == (400, "invalid_request")


async def test_only_operators_come_here_and_they_stay(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        for method, path in (("POST", KEYS), ("GET", KEYS), ("GET", f"{KEYS}/key_1"), ("DELETE", f"{KEYS}/key_1")):
            stranger = await ask(method, path, {} if method == "POST" else None, [KEY]).call(one.root)
            assert (stranger.status, stranger.error()["code"]) == (403, "permission_denied")
        own = await ask("GET", f"{KEYS}/key_o").call(one.root)
        structure(KeyDocument, own.json(), closed=True)
        assert own.json()["roles"] == ["operator"]
        kept = await ask("DELETE", f"{KEYS}/key_o").call(one.root)
        assert (kept.status, kept.error()["param"]) == (400, "key")
        assert SECRET not in own.body.decode()
