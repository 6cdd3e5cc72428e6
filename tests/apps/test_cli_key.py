"""``lunanexa key`` as a user calls it, over a scripted controller."""

import json
from typing import Any

import pytest

from lunanexa_apps.cli import key
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpRequest
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse

SECRET = "lnx_" + "s" * 43
KEY: dict[str, Any] = {
    "key": "key_1",
    "name": "build farm",
    "tenant": "local",
    "roles": ["inference"],
    "state": "active",
    "aliases": ["gemma", "moon"],
    "concurrency": 2,
    "requests_per_minute": 60,
    "tokens_per_minute": None,
    "priority_max": "Interactive",
    "data_class_max": "Confidential",
    "created_wall_ms": 1_700_000_000_000,
    "expires_wall_ms": 1_700_086_400_000,
    "in_progress": 1,
    "requests_window": {"limit": 60, "remaining": 57, "reset_ms": 31_200},
    "tokens_window": None,
    "usage": {
        "requests": 3,
        "succeeded": 1,
        "failed": 0,
        "cancelled": 2,
        "input_tokens": 12,
        "output_tokens": 90,
        "estimated": True,
    },
}


class Controller:
    """Answers each route of keys, and keeps what it was asked."""

    def __init__(self, *keys: dict[str, Any]) -> None:
        self.keys = keys
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        assert dict(request.headers)[b"authorization"] == b"Bearer token"
        self.asked.append((request.method, request.target, json.loads(request.body) if request.body else None))
        match (request.method, request.target):
            case ("POST", "/admin/v1/keys"):
                answer: Any = KEY | {"secret": SECRET}
            case ("GET", "/admin/v1/keys"):
                answer = {"data": list(self.keys)}
            case ("GET", "/admin/v1/keys/key_1"):
                answer = KEY
            case ("DELETE", "/admin/v1/keys/key_1"):
                answer = {"key": "key_1", "revoked": True}
            case other:
                raise AssertionError(other)
        return Reply(200, [json.dumps(answer).encode()])


def test_create_prints_the_secret_alone_and_a_hint_beside_it() -> None:
    controller = Controller()
    arguments = [
        *("--name", "build farm", "--alias", "gemma", "--alias", "moon", "--concurrency", "2"),
        *("--requests-per-minute", "60", "--tokens-per-minute", "9000", "--expires-in", "30d"),
    ]
    result = call(key.command, "create", *arguments, server=controller, environment=REMOTE)
    assert result.exit_code == 0
    assert result.stdout == SECRET + "\n"
    assert "key_1" in result.stderr
    assert "can't be shown again" in result.stderr
    assert SECRET not in result.stderr
    assert controller.asked == [
        (
            "POST",
            "/admin/v1/keys",
            {
                "name": "build farm",
                "aliases": ["gemma", "moon"],
                "concurrency": 2,
                "requests_per_minute": 60,
                "tokens_per_minute": 9000,
                "expires_in_ms": 30 * 86_400_000,
            },
        )
    ]


def test_what_is_not_given_is_not_limited() -> None:
    controller = Controller()
    result = call(key.command, "create", "-o", "json", server=controller, environment=REMOTE)
    assert json.loads(result.stdout) == KEY | {"secret": SECRET}
    ((_, _, document),) = controller.asked
    assert document.pop("aliases") == []
    assert set(document.values()) == {None}


def test_what_it_may_ask_for() -> None:
    controller = Controller()
    arguments = ("create", "--priority-max", "interactive", "--data-class-max", "Confidential")
    assert call(key.command, *arguments, server=controller, environment=REMOTE).exit_code == 0
    ((_, _, document),) = controller.asked
    assert (document["priority_max"], document["data_class_max"]) == ("Interactive", "Confidential")
    shown = call(key.command, "show", "key_1", server=controller, environment=REMOTE).stdout
    assert "Interactive at most" in shown
    assert "Confidential at most" in shown


@pytest.mark.parametrize(("text", "ms"), [("12h", 43_200_000), ("90m", 5_400_000), ("45s", 45_000)])
def test_times(text: str, ms: int) -> None:
    controller = Controller()
    assert call(key.command, "create", "--expires-in", text, server=controller, environment=REMOTE).exit_code == 0
    assert controller.asked[0][2]["expires_in_ms"] == ms


@pytest.mark.parametrize(
    "arguments",
    [
        ("create", "--expires-in", "soon"),
        ("create", "--expires-in", "0d"),
        ("create", "--expires-in", "1w"),
        ("create", "--concurrency", "0"),
        ("create", "--priority-max", "Urgent"),
        ("create", "--data-class-max", "Secret"),
        ("create", "--name", "\udcff"),
        ("create", "--alias", "\udcff"),
        ("show",),
        ("show", "no key"),
        ("revoke", "../status"),
    ],
)
def test_wrong_usage_is_told_before_anybody_is_asked(arguments: tuple[str, ...]) -> None:
    controller = Controller()
    assert call(key.command, *arguments, server=controller, environment=REMOTE).exit_code == 2
    assert not controller.asked


def test_list_as_a_page_and_as_json() -> None:
    expired = KEY | {"key": "key_2", "state": "expired", "aliases": [], "name": None, "usage": {}}
    controller = Controller(KEY, expired)
    page = call(key.command, "list", server=controller, environment=REMOTE).stdout
    words = ("key_1", "build farm", "gemma, moon", "60 requests a minute", "2023-11-15 22:13 UTC", "expired", "all")
    for part in (*words, "12 in, 90 out"):
        assert part in page, part
    document = json.loads(call(key.command, "list", "-o", "json", server=controller, environment=REMOTE).stdout)
    assert document == {"data": [KEY, expired]}
    assert "there are no keys" in call(key.command, "list", server=Controller(), environment=REMOTE).stdout


def test_a_key_s_name_is_whole_on_a_narrow_screen() -> None:
    long = "key_0k3v9q4m2n8x7c1b5z6a4d3f2g"
    controller = Controller(KEY | {"key": long})
    for columns in ("80", "120"):
        shown = call(key.command, "list", server=controller, environment=REMOTE | {"COLUMNS": columns}).stdout
        assert long in shown
        assert "active" in shown
        assert ("LIMITS" in shown) == (columns == "120")


def test_show_tells_what_is_left_and_what_was_used() -> None:
    page = call(key.command, "show", "key_1", server=Controller(), environment=REMOTE).stdout
    for part in ("1 of 2", "57 of 60 left, all again in 32 s", "not limited", "3 (1 succeeded", "90 out (partly estim"):
        assert part in page, part


def test_revoke() -> None:
    controller = Controller()
    assert call(key.command, "revoke", "key_1", server=controller, environment=REMOTE).stdout == "key_1 is revoked\n"
    assert controller.asked == [("DELETE", "/admin/v1/keys/key_1", None)]


def test_a_refusal_ends_by_the_outcome_table() -> None:
    result = call(key.command, "show", "key_9", server=refuse(Outcome.NOT_FOUND, "there is none"), environment=REMOTE)
    assert result.exit_code == 66
    assert "error: there is none" in result.stderr
    wrong = call(key.command, "list", server=refuse(Outcome.PERMISSION_DENIED, "not an operator"), environment=REMOTE)
    assert wrong.exit_code == 77
    assert "operator token" in wrong.stderr
    assert call(key.command, "list", environment=REMOTE).exit_code == 69
