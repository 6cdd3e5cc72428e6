"""``lunanexa node`` as a user calls it, over a scripted controller, and a drain as it is watched."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import trio
from click.shell_completion import ShellComplete
from trio.testing import MockClock

from lunanexa_apps.cli import node
from lunanexa_apps.cli.drain_watch import SILENT_S, watch
from lunanexa_client import ConnectionFailed
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpRequest, HttpUnreachable
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse, tools
from tests.client.scripted import scripted

NODE: dict[str, Any] = {
    "node": "sim-dgx-1",
    "state": "ready",
    "directive": "active",
    "reason": None,
    "retired": False,
    "enrolled": True,
    "generation": 7,
    "agent_version": "0.1.0",
    "heartbeat_age_ms": 412,
    "available_mib": 65_536,
    "total_mib": 131_072,
    "document_refusal": None,
    "in_flight": 3,
    "drained": False,
}
SERVING = {
    "assignment": "asg_1",
    "deployment": "tiny",
    "alias": "gemma",
    "state": "ready",
    "in_flight": 3,
    "routable": True,
    "not_routable": None,
    "elsewhere": [],
}
COMING = {"assignment": "asg_2", "node": "sim-dgx-2", "state": "starting", "routable": False}
SERVED = COMING | {"state": "ready", "routable": True}
DOCUMENT = NODE | {"replicas": [SERVING]}
DRAINING = NODE | {"directive": "drain", "reason": "fan", "replicas": [SERVING | {"elsewhere": [COMING]}]}
STEPS = (
    DRAINING,
    DRAINING | {"replicas": [SERVING | {"routable": False, "in_flight": 1, "elsewhere": [SERVED]}], "in_flight": 1},
    DRAINING | {"replicas": [SERVING | {"deployment": None, "alias": None, "routable": False, "in_flight": 0}]},
    DRAINING | {"replicas": [], "in_flight": 0, "drained": True},
)


class Controller:
    """Answers each route of nodes, and keeps what it was told."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers or (DOCUMENT,))
        self.told: list[tuple[str, Any]] = []

    def __call__(self, request: HttpRequest) -> Reply:
        answer: Any = self.answers[0]
        match (request.method, request.target):
            case ("GET", "/admin/v1/nodes?limit=500"):
                answer = {"data": [NODE | {"replicas": 1}], "next_cursor": "sim-dgx-1"}
            case ("GET", "/admin/v1/nodes?limit=500&cursor=sim-dgx-1"):
                answer = {"data": [NODE | {"node": "other", "replicas": 0, "retired": True}], "next_cursor": None}
            case ("GET", "/admin/v1/nodes/sim-dgx-1"):
                pass
            case ("PUT", "/admin/v1/nodes/sim-dgx-1/directive"):
                self.told.append((request.target, json.loads(request.body)))
            case other:
                raise AssertionError(other)
        if len(self.answers) > 1:
            del self.answers[0]
        return Reply(200, [json.dumps(answer).encode()])


def ask(*arguments: str, server: Callable[[HttpRequest], Reply] | None = None) -> Any:
    return call(node.command, *arguments, server=server or Controller(), environment=REMOTE)


def test_the_list_and_one_of_it() -> None:
    listed = ask("list")
    assert listed.exit_code == 0
    for part in ("sim-dgx-1", "active", "412 ms ago", "loopback", "other", "retired"):
        assert part in listed.stdout
    shown = ask("show", "sim-dgx-1").stdout
    for part in ("sim-dgx-1", "generation 7", "64.0 of 128.0 GiB", "gemma", "tiny", "yes"):
        assert part in shown
    assert json.loads(ask("list", "-o", "json").stdout)["data"][1]["node"] == "other"
    assert json.loads(ask("show", "sim-dgx-1", "-o", "json").stdout) == DOCUMENT
    refused = {"refused": [{"assignment": "asg_2", "refusal": "policy_memory"}]}
    shown = ask("show", "sim-dgx-1", server=Controller(DOCUMENT | refused)).stdout
    assert "asg_2 (policy_memory: no room by its owner's rule)" in shown


def test_a_narrow_screen_has_every_name_whole() -> None:
    result = call(node.command, "list", server=Controller(), environment={**REMOTE, "COLUMNS": "80"})
    assert "sim-dgx-1" in result.stdout
    assert "AGENT" not in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


@pytest.mark.parametrize(
    ("skew_ms", "error_ms", "told", "warned"),
    [
        (None, None, "-", False),
        (3, 8, "within 8 ms", False),
        (-600_000, 8, "10 min ahead", True),
        (4_000, 8, "4.0 s behind", False),
    ],
)
def test_how_far_a_clock_is_off_is_told(skew_ms: int | None, error_ms: int | None, told: str, warned: bool) -> None:
    off = {"skew_ms": skew_ms, "skew_error_ms": error_ms}
    shown = ask("show", "sim-dgx-1", server=Controller(DOCUMENT | off)).stdout
    clock = next(line for line in shown.splitlines() if line.startswith("clock"))
    assert clock.removeprefix("clock").strip() == told
    assert ("clock off" in shown) is warned


def test_a_directive_is_told_with_its_reason() -> None:
    controller = Controller()
    result = ask("cordon", "sim-dgx-1", "--reason", "fan", server=controller)
    assert (result.exit_code, result.stdout) == (0, "sim-dgx-1 is cordoned\n")
    assert "no other node serves gemma" in result.stderr
    assert "lunanexa node activate sim-dgx-1" in result.stderr
    assert ask("activate", "sim-dgx-1", server=controller).stdout == "sim-dgx-1 is active\n"
    assert [told["directive"] for _, told in controller.told] == ["cordon", "active"]
    assert [told["reason"] for _, told in controller.told] == ["fan", None]
    revoked = ask("activate", "sim-dgx-1", server=Controller(DOCUMENT | {"revoked": True}))
    assert "lunanexa node token sim-dgx-1 --again" in revoked.stderr


def test_a_drain_that_is_over_says_so() -> None:
    result = ask("drain", "sim-dgx-1", server=Controller(STEPS[-1]))
    assert (result.exit_code, result.stdout) == (0, "sim-dgx-1 is drained\n")
    document = json.loads(ask("drain", "sim-dgx-1", "-o", "json", server=Controller(STEPS[-1])).stdout)
    assert document == STEPS[-1]


def test_a_drain_need_not_be_waited_for() -> None:
    result = ask("drain", "sim-dgx-1", "--no-wait", server=Controller(*STEPS))
    assert result.exit_code == 0
    assert "is being emptied" in result.stdout
    assert "lunanexa node show sim-dgx-1" in result.stdout


@pytest.mark.parametrize("command", [("drain",), ("retire", "--yes")])
def test_how_long_it_may_take_is_told(command: tuple[str, ...]) -> None:
    controller = Controller(STEPS[-1] | {"retired": True})
    assert ask(*command, "sim-dgx-1", "--within", "2h", server=controller).exit_code == 0
    assert ask(*command, "sim-dgx-1", server=controller).exit_code == 0
    assert [told.get("within_ms") for _, told in controller.told] == [7_200_000, None]
    assert ask(*command, "sim-dgx-1", "--within", "soon").exit_code == 2
    assert "within 2 h" in ask("show", "sim-dgx-1", server=Controller(DRAINING | {"within_ms": 7_200_000})).stdout


def test_a_drain_that_takes_longer_goes_on() -> None:
    result = ask("drain", "sim-dgx-1", "--timeout", "1s", server=Controller(DRAINING))
    assert result.exit_code == 75
    assert "comes up on sim-dgx-2 (starting)" in result.stdout
    assert "goes on" in result.stderr
    assert "take it back: lunanexa node activate sim-dgx-1" in result.stderr


def test_who_stops_waiting_is_told_that_the_drain_goes_on() -> None:
    asked = 0

    def interrupted(request: HttpRequest) -> Reply:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise KeyboardInterrupt
        return Controller(DRAINING)(request)

    result = ask("drain", "sim-dgx-1", server=interrupted)
    assert result.exit_code == 130
    assert "goes on" in result.stderr
    assert "lunanexa node activate sim-dgx-1" in result.stderr


def test_of_a_lost_node_nothing_is_waited_for() -> None:
    lost = DRAINING | {"state": "lost", "replicas": [SERVING | {"deployment": None}]}
    result = ask("drain", "sim-dgx-1", server=Controller(lost))
    assert result.exit_code == 0
    assert "lost, and has nothing assigned to it any more" in result.stdout


def test_a_retirement_is_asked_about() -> None:
    controller = Controller(STEPS[-1] | {"directive": "retire", "retired": True})
    refused = call(node.command, "retire", "sim-dgx-1", server=controller, stdin="n\n", environment=REMOTE)
    assert refused.exit_code == 1
    assert ask("retire", "sim-dgx-1", "-o", "json", server=controller).exit_code == 1
    assert not controller.told
    done = ask("retire", "sim-dgx-1", "--yes", server=controller)
    assert (done.exit_code, done.stdout) == (0, "sim-dgx-1 is retired\n")


def test_what_goes_wrong_says_what_to_do() -> None:
    nobody = ask("show", "none", server=refuse(Outcome.NOT_FOUND, "There is no node 'none'."))
    assert nobody.exit_code == 66
    assert "lunanexa node list" in nobody.stderr
    gone = ask("activate", "old", server=refuse(Outcome.NODE_RETIRED, "This node is retired."))
    assert (gone.exit_code, "This node is retired." in gone.stderr) == (77, True)
    assert "token" not in gone.stderr
    assert ask("show", "a b").exit_code == 2
    assert ask("drain", "sim-dgx-1", "--reason", "a\nb").exit_code == 2


def test_names_are_completed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REMOTE.items():
        monkeypatch.setenv(name, value)
    completion = ShellComplete(node.command, {"obj": tools(Controller())}, "lunanexa", "_LUNANEXA_COMPLETE")
    assert [item.value for item in completion.get_completions(["drain"], "sim")] == ["sim-dgx-1"]


async def test_each_step_of_a_drain_is_told_once(autojump_clock: MockClock) -> None:
    assert autojump_clock.autojump_threshold == 0
    replies = [Reply(200, [json.dumps(step).encode()]) for step in (STEPS[0], *STEPS)]
    lines: list[str] = []
    script = scripted(*replies)
    found = await watch(script.client.operator, STEPS[0], "drain", timeout_ms=None, tell=lines.append)
    assert found.over
    assert lines == [
        "  gemma: serves until its successor does, 3 requests in progress, comes up on sim-dgx-2 (starting)",
        "  gemma: takes no new request, 1 request in progress, served by sim-dgx-2",
        "  asg_1: stops (ready)",
    ]


async def test_a_drain_outlives_a_change_of_the_leader(autojump_clock: MockClock) -> None:
    assert autojump_clock.autojump_threshold == 0
    away = HttpUnreachable("refused")
    script = scripted(away, away, Reply(200, [json.dumps(STEPS[-1]).encode()]))
    found = await watch(script.client.operator, DRAINING, "drain", timeout_ms=None, tell=lambda _: None)
    assert found.over
    began = trio.current_time()
    with pytest.raises(ConnectionFailed):
        await watch(scripted(away).client.operator, DRAINING, "drain", timeout_ms=None, tell=lambda _: None)
    assert trio.current_time() - began >= SILENT_S
