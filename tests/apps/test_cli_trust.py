"""``lunanexa node token|revoke|address`` and ``lunanexa trust`` as a user calls them, over a scripted controller."""

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from rich.console import Console
from trio.testing import MockClock

from lunanexa_apps.cli import node, trust
from lunanexa_apps.cli.node_page import node_page, nodes_page
from lunanexa_apps.cli.trust_page import trust_page
from lunanexa_apps.cli.trust_watch import watch
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse
from tests.apps.test_cli_node import DOCUMENT, NODE
from tests.client.scripted import scripted

LINE = "lnxnode1_aW4gdGhpcyBhbnN3ZXIgYW5kIG5vd2hlcmUgZWxzZQ"
MINTED: dict[str, Any] = {
    "node": "spark-2",
    "token": "token_1",
    "line": LINE,
    "expires_in_ms": 900_000,
    "node_url": "https://ctl.example:8401",
}
OLD, NEW = "0a" * 32, "1b" * 32
STABLE: dict[str, Any] = {
    "version": 3,
    "stage": "stable",
    "authorities": [{"fingerprint": OLD, "certificate": "PEM", "issuing": True}],
    "signing_keys": [{"key_id": "key_old", "public_key": "00", "signing": True}],
    "waiting": [],
    "revoked": 2,
}
LOST = {"node": "spark-3", "state": "lost", "lacks": "not_heard"}
SPREADING = STABLE | {
    "version": 4,
    "stage": "spreading",
    "authorities": [*STABLE["authorities"], {"fingerprint": NEW, "certificate": "PEM", "issuing": False}],
    "signing_keys": [*STABLE["signing_keys"], {"key_id": "key_new", "public_key": "11", "signing": False}],
    "waiting": [{"node": "spark-2", "state": "ready", "lacks": "old_trust"}, LOST],
}
TURNING = SPREADING | {
    "version": 5,
    "stage": "turning",
    "waiting": [{"node": "spark-2", "state": "ready", "lacks": "old_certificate"}],
}
ROTATED = STABLE | {"version": 6, "authorities": [{"fingerprint": NEW, "certificate": "PEM", "issuing": True}]}
CRL = "-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"
REVOKED = DOCUMENT | {"revoked": True, "enrolled": False, "replicas": []}


class Controller:
    """Answers each route of trust, and keeps what it was told; of ``trust`` one answer after another."""

    def __init__(self, *trust: dict[str, Any], minted: dict[str, Any] | None = None) -> None:
        self.trust = list(trust or (STABLE,))
        self.minted = MINTED if minted is None else minted
        self.told: list[tuple[str, Any]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        if request.method != "GET":
            self.told.append((request.target.removeprefix("/admin/v1"), json.loads(request.body or b"null")))
        match (request.method, request.target.removeprefix("/admin/v1")):
            case ("POST", "/nodes/spark-2/token"):
                answer: Any = self.minted
            case ("POST", "/nodes/sim-dgx-1/revoke"):
                answer = REVOKED
            case ("PUT", "/nodes/sim-dgx-1/address"):
                answer = DOCUMENT
            case ("GET", "/trust") | ("POST", "/trust/rotate"):
                answer = self.trust[0]
                if len(self.trust) > 1:
                    del self.trust[0]
            case ("GET", "/trust/crl"):
                return Reply(200, [CRL.encode()])
            case other:
                raise AssertionError(other)
        return Reply(200, [json.dumps(answer).encode()])


def ask(command: Any, *arguments: str, server: Callable[[HttpRequest], Reply] | None = None, **more: Any) -> Any:
    return call(command, *arguments, server=server or Controller(), environment=REMOTE, **more)


def test_a_token_is_one_line_and_the_next_command_is_told() -> None:
    controller = Controller()
    result = ask(node.command, "token", "spark-2", server=controller)
    assert (result.exit_code, result.stdout) == (0, f"{LINE}\n")
    assert "good once, for 15 min" in result.stderr
    assert "lunanexa-node enroll --controller https://ctl.example:8401 --token-file FILE" in result.stderr
    assert controller.told == [("/nodes/spark-2/token", {"again": False, "loopback": False})]
    assert (
        json.loads(ask(node.command, "token", "spark-2", "--again", "-o", "json", server=controller).stdout) == MINTED
    )
    assert controller.told[-1] == ("/nodes/spark-2/token", {"again": True, "loopback": False})


def test_a_token_goes_into_a_file_that_nobody_else_can_read(tmp_path: Path) -> None:
    out = tmp_path / "spark 2.token"
    result = ask(node.command, "token", "spark-2", "--out", str(out))
    assert (result.exit_code, result.stdout) == (0, f"the token for spark-2 is in {out}\n")
    assert out.read_text() == f"{LINE}\n"
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert "--token-file 'spark 2.token'" in result.stderr
    assert LINE not in result.stdout + result.stderr
    told = json.loads(ask(node.command, "token", "spark-2", "--out", str(out), "-o", "json").stdout)
    assert told == {key: value for key, value in MINTED.items() if key != "line"} | {"file": str(out)}


def test_a_token_that_can_t_be_kept_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = ask(node.command, "token", "spark-2", "--out", str(tmp_path / "file" / "token"))
    assert result.exit_code == 1
    assert "could not be kept" in result.stderr
    assert LINE not in result.stderr


@pytest.mark.parametrize(
    ("url", "told"),
    [
        (None, "https://CONTROLLER:PORT"),
        ("https://0.0.0.0:8401", "https://CONTROLLER:8401"),
        ("https://[::]:8401", "https://CONTROLLER:8401"),
        ("https://[fd00::1]:8401", "https://[fd00::1]:8401"),
    ],
)
def test_where_a_node_enrols_is_told_as_far_as_it_is_known(url: str | None, told: str) -> None:
    result = ask(node.command, "token", "spark-2", server=Controller(minted=MINTED | {"node_url": url}))
    assert f"--controller {told} " in result.stderr


def test_a_node_that_is_enrolled_is_not_let_in_twice_by_mistake() -> None:
    message = "This node is enrolled, or was; ask for the token with `again` (lunanexa node token NAME --again)."
    known = refuse(Outcome.STALE_GENERATION, message)
    result = ask(node.command, "token", "spark-2", server=known)
    assert result.exit_code == 65
    assert message in result.stderr
    assert ask(node.command, "token", "a b").exit_code == 2


def test_a_revocation_is_asked_about() -> None:
    controller = Controller()
    refused = ask(node.command, "revoke", "sim-dgx-1", server=controller, stdin="n\n")
    assert refused.exit_code == 1
    assert ask(node.command, "revoke", "sim-dgx-1", "-o", "json", server=controller).exit_code == 1
    assert not controller.told
    done = ask(node.command, "revoke", "sim-dgx-1", "--reason", "stolen", "--yes", server=controller)
    assert (done.exit_code, done.stdout) == (0, "sim-dgx-1 is revoked\n")
    assert "lunanexa node token sim-dgx-1 --again" in done.stderr
    assert controller.told == [("/nodes/sim-dgx-1/revoke", {"reason": "stolen"})]
    shown = ask(node.command, "revoke", "sim-dgx-1", "--yes", "-o", "json", server=controller)
    assert json.loads(shown.stdout) == REVOKED


def test_an_address_is_set_and_taken_away() -> None:
    controller = Controller()
    result = ask(node.command, "address", "sim-dgx-1", "10.0.0.7:9443", server=controller)
    assert (result.exit_code, result.stdout) == (0, "sim-dgx-1 is reached at 10.0.0.7:9443\n")
    assert "no data listener" in ask(node.command, "address", "sim-dgx-1", "none", server=controller).stdout
    assert [told["data_address"] for _, told in controller.told] == ["10.0.0.7:9443", None]


def test_trust_is_shown_whole() -> None:
    result = ask(trust.command, "show")
    assert result.exit_code == 0
    for part in ("trust set 3", OLD, "issues", "key_old", "signs", "2 revoked certificates"):
        assert part in result.stdout
    assert "rotation" not in result.stdout
    assert json.loads(ask(trust.command, "show", "-o", "json").stdout) == STABLE
    turning = ask(trust.command, "show", server=Controller(SPREADING)).stdout
    for part in ("step 1 of 2", OLD, NEW, "trusted", "spark-2", "spark-3", "it is lost"):
        assert part in turning


def test_a_rotation_shows_each_step_once() -> None:
    result = ask(trust.command, "rotate", server=Controller(SPREADING, TURNING, ROTATED))
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "1 of 2: nodes learn of the new authority and signing key",
        "  spark-2 has not taken the new ones yet",
        "  spark-3 was not heard yet: it is lost, and all wait for it",
        "2 of 2: the new ones are in use, and nodes take new certificates",
        "  spark-2 has a certificate of the old authority yet",
        "rotated: nobody trusts the old ones any more",
    ]
    assert json.loads(ask(trust.command, "rotate", "-o", "json", server=Controller(ROTATED)).stdout) == ROTATED


def test_a_rotation_that_waits_says_for_whom_and_how_to_go_on() -> None:
    late = ask(trust.command, "rotate", "--timeout", "1s", server=Controller(SPREADING))
    assert late.exit_code == 75
    assert "bring spark-3 and spark-2 back, or shut out: lunanexa node revoke spark-3" in late.stderr
    begun = ask(trust.command, "rotate", "--no-wait", server=Controller(SPREADING))
    assert begun.exit_code == 0
    assert "lunanexa trust show" in begun.stdout


def test_who_stops_waiting_is_told_that_the_rotation_goes_on() -> None:
    asked = 0

    def interrupted(request: HttpRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt
        return Controller(SPREADING)(request)

    result = ask(trust.command, "rotate", server=interrupted)
    assert result.exit_code == 130
    assert "the rotation goes on" in result.stderr


async def test_a_rotation_outlives_a_change_of_the_leader(autojump_clock: MockClock) -> None:
    assert autojump_clock.autojump_threshold == 0
    away = HttpUnreachable("refused")
    script = scripted(away, away, Reply(200, [json.dumps(ROTATED).encode()]))
    found = await watch(script.client.operator, SPREADING, timeout_ms=None, tell=lambda _: None)
    assert found == ROTATED
    assert trio.current_time() > 0


def test_revocation_lists_come_as_they_are(tmp_path: Path) -> None:
    assert ask(trust.command, "crl").stdout == CRL
    assert json.loads(ask(trust.command, "crl", "-o", "json").stdout) == {"crl": CRL}
    out = tmp_path / "fleet.crl"
    assert ask(trust.command, "crl", "--out", str(out)).exit_code == 0
    assert out.read_text() == CRL
    strange = ask(trust.command, "crl", server=lambda _: Reply(200, [b"<html>"], ((b"x-request-id", b"r"),)))
    assert strange.exit_code != 0


def page(document: Any, width: int) -> list[str]:
    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as shown:
        console.print(document)
    return shown.get().splitlines()


LISTED: list[dict[str, Any]] = [
    NODE
    | {
        "replicas": 1,
        "revoked": False,
        "certificate": {"serial": "1f", "issuer": OLD, "expires_in_ms": 50_400_000},
        "data_address": "10.0.0.7:9443",
    },
    NODE | {"node": "spark-2", "replicas": 0, "enrolled": False, "revoked": True},
    NODE | {"node": "spark-4", "replicas": 0, "enrolled": False, "revoked": False, "token_expires_in_ms": 840_000},
]


def test_the_list_tells_who_is_out_and_who_may_come() -> None:
    wide, narrow = page(nodes_page(LISTED), 112), page(nodes_page(LISTED), 80)
    assert (max(map(len, narrow)) <= 80, max(map(len, wide)) <= 112) == (True, True)
    assert ("14 h" in wide[1], "10.0.0.7:9443" in wide[1]) == (True, True)
    for lines in (wide, narrow):
        assert [line.split()[1] for line in lines[1:3]] == ["ready", "revoked"]
        assert "may enrol" in lines[3]
    shown = "\n".join(page(node_page(LISTED[0] | {"enrolled_wall_ms": 1_790_000_000_000, "replicas": []}), 80))
    for part in ("2026-09-21", "14 h left", "10.0.0.7:9443"):
        assert part in shown
    again = page(nodes_page([LISTED[0] | {"token_expires_in_ms": 840_000}]), 80)
    assert again[1].split()[1] == "ready"
    coming = "\n".join(page(node_page(LISTED[2] | {"revoked": True, "replicas": []}), 80))
    assert "revoked, may enrol for 14 min" in coming


@pytest.mark.parametrize("width", [80, 120])
def test_a_page_of_trust_fits_its_screen_with_fingerprints_whole(width: int) -> None:
    lines = page(trust_page(SPREADING), width)
    assert max(map(len, lines)) <= width
    assert any(OLD in line for line in lines)
