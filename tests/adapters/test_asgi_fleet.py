"""Nodes and deployments over HTTP: seen, directed, planned and scaled."""

from typing import Any

import attrs
import pytest
from trio.testing import MockClock

from lunanexa_apps.codec import structure
from lunanexa_core.commands import Reconcile, ReportHeartbeat
from lunanexa_core.contract.fleet import DeploymentDocument, DeploymentPlan, NodeDocument, NodeList, NodeSummary
from lunanexa_core.contract.operator import StatusDocument
from lunanexa_core.placement.feasible import NotFeasible
from lunanexa_core.placement.preview import Action, Kind
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.southbound.heartbeat import ReplicaState, UnstartedReplica
from tests.adapters.edge import JSON, KEY, OPERATOR_KEY, Edge, edge
from tests.adapters.test_asgi_control import ask

NODES, DEPLOYMENTS = "/admin/v1/nodes", "/admin/v1/deployments"
OTHER: dict[str, Any] = {
    "deployment": "other",
    "alias": "other",
    "replicas": 2,
    "engine": {"driver": "reference", "served_name": "other", "binary": "/opt/engine"},
}


async def get(one: Edge, path: str, query: str = "") -> Any:
    answer = await ask("GET", path, query=query.encode()).call(one.root)
    assert answer.status == 200, answer.body
    return answer.json()


async def put(one: Edge, path: str, body: Any, *headers: tuple[bytes, bytes]) -> tuple[int, Any]:
    answer = await ask("PUT", path, body, [OPERATOR_KEY, JSON, *headers]).call(one.root)
    return answer.status, answer.json()


async def test_a_node_is_seen_directed_and_given_back(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        listed = structure(NodeList, await get(one, NODES), closed=True)
        assert sum(node.replicas for node in listed.data) == len(one.world.kernel.state.assignments)
        node = next(node for node in listed.data if node.replicas)
        assert (node.directive, node.retired, node.drained, node.in_flight) == (Directive.ACTIVE, False, False, 0)
        path = f"{NODES}/{node.node}"
        status, answer = await put(one, f"{path}/directive", {"directive": "cordon", "reason": "fan"})
        assert status == 200
        cordoned = structure(NodeDocument, answer, closed=True)
        assert (cordoned.directive, cordoned.reason) == (Directive.CORDON, "fan")
        assert cordoned.generation == node.generation + 1
        assert [replica.not_routable for replica in cordoned.replicas] == ["its node takes no new work"]
        assert answer == await get(one, path)
        fence = (b"if-match", str(node.generation).encode())
        status, answer = await put(one, f"{path}/directive", {"directive": "active"}, fence)
        assert (status, answer["error"]["code"]) == (409, "stale_generation")
        fence = (b"if-match", str(cordoned.generation).encode())
        status, answer = await put(one, f"{path}/directive", {"directive": "active"}, fence)
        assert (status, answer["directive"], answer["reason"]) == (200, "active", None)
        status, answer = await put(one, f"{path}/directive", {"directive": "drain", "within_ms": 5_000})
        assert (status, answer["directive"], answer["within_ms"]) == (200, "drain", 5_000)


async def test_nodes_come_in_pages(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        names = [f"rack-{number}" for number in range(10, 15)]
        for name in names:
            answer = await ask("POST", f"{NODES}/{name}/token", {}, [OPERATOR_KEY, JSON]).call(one.root)
            assert answer.status == 200
        whole = structure(NodeList, await get(one, NODES), closed=True)
        assert whole.next_cursor is None
        listed: list[NodeSummary] = []
        query, pages = "limit=2", 0
        cursor: str | None = ""
        while cursor is not None:
            page = structure(NodeList, await get(one, NODES, query), closed=True)
            assert len(page.data) == 2 or page.next_cursor is None
            listed += page.data
            cursor, pages = page.next_cursor, pages + 1
            query = f"limit=2&cursor={cursor}"
        assert [node.node for node in listed] == [node.node for node in whole.data]
        assert set(names) < {node.node for node in listed}
        assert pages == (len(listed) + 1) // 2
        # One that is gone is a place all the same.
        behind = structure(NodeList, await get(one, NODES, "cursor=rack-12x"), closed=True)
        assert [node.node for node in behind.data] == names[3:]


@pytest.mark.parametrize("query", ["limit=0", "limit=501", "limit=x", "cursor=%2F", "cursor="])
async def test_a_page_that_can_not_be_is_refused(autojump_clock: MockClock, query: str) -> None:
    async with edge(autojump_clock) as one:
        answer = await ask("GET", NODES, query=query.encode()).call(one.root)
        assert (answer.status, answer.json()["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        (f"{NODES}/none/directive", {"directive": "drain"}, 404, "not_found"),
        (f"{NODES}/node-1/directive", {"directive": "sleep"}, 400, "invalid_request"),
        (f"{NODES}/node-1/directive", {"directive": "drain", "why": "fan"}, 400, "invalid_request"),
        (f"{NODES}/node-1/directive", {"directive": "drain", "reason": "x" * 300}, 400, "invalid_request"),
        (f"{NODES}/node-1/directive", {"directive": "drain", "within_ms": -1}, 400, "invalid_request"),
        (f"{NODES}/node-1/directive", {"directive": "cordon", "within_ms": 1}, 400, "invalid_request"),
        (f"{NODES}/node-1/directive", [], 400, "invalid_request"),
        (f"{DEPLOYMENTS}/none/replicas", {"replicas": 1}, 404, "not_found"),
        (f"{DEPLOYMENTS}/d1/replicas", {"replicas": -1}, 400, "invalid_request"),
        (f"{DEPLOYMENTS}/d1/replicas", {}, 400, "invalid_request"),
    ],
)
async def test_what_can_not_be_is_refused(
    autojump_clock: MockClock, path: str, body: Any, status: int, code: str
) -> None:
    async with edge(autojump_clock) as one:
        found, answer = await put(one, path, body)
        assert (found, answer["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", NODES, None),
        ("GET", f"{NODES}/node-1", None),
        ("PUT", f"{NODES}/node-1/directive", {"directive": "drain"}),
        ("GET", f"{DEPLOYMENTS}/d1", None),
        ("POST", f"{DEPLOYMENTS}:plan", OTHER),
        ("PUT", f"{DEPLOYMENTS}/d1/replicas", {"replicas": 1}),
    ],
)
async def test_who_is_no_operator_sees_and_does_nothing(
    autojump_clock: MockClock, method: str, path: str, body: Any
) -> None:
    async with edge(autojump_clock) as one:
        before = one.world.kernel.head
        for headers, status in (((KEY,), 403), ((), 401)):
            answer = await ask(method, path, body, headers).call(one.root)
            assert answer.status == status
        assert one.world.kernel.head == before


async def test_a_plan_says_all_and_does_nothing(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        assert (await ask("POST", f"{NODES}/node-2/revoke", {}).call(one.root)).status == 200
        before = one.world.kernel.head
        enrolled = {name for name, node in one.world.kernel.state.nodes.items() if node.public_key is not None}
        answer = await ask("POST", f"{DEPLOYMENTS}:plan", OTHER | {"replicas": len(enrolled) + 1}).call(one.root)
        plan = structure(DeploymentPlan, answer.json(), closed=True)
        assert (plan.kind, plan.generation, plan.unplaced) == (Kind.CREATE, 1, 1)
        assert [(change.action, change.assignment) for change in plan.changes] == [(Action.PLACE, None)] * len(enrolled)
        assert {node.node for node in plan.nodes if not node.reasons} == enrolled
        assert [NotFeasible.NOT_ENROLLED in node.reasons for node in plan.nodes] == [False, True]
        assert {field.field: field.after for field in plan.fields}["engine.served_name"] == "other"
        (known,) = (await get(one, DEPLOYMENTS))["data"]
        path = f"{DEPLOYMENTS}/{known['spec']['deployment']}"
        shown = structure(DeploymentDocument, await get(one, path), closed=True)
        same = await ask("POST", f"{DEPLOYMENTS}:plan", known["spec"]).call(one.root)
        assert (same.json()["kind"], same.json()["changes"], same.json()["fields"]) == ("none", [], [])
        changed = known["spec"] | {"engine": known["spec"]["engine"] | {"slots": 9}}
        restart = structure(
            DeploymentPlan, (await ask("POST", f"{DEPLOYMENTS}:plan", changed).call(one.root)).json(), closed=True
        )
        assert (restart.kind, restart.generation) == (Kind.CHANGE, shown.generation + 1)
        assert [change.action for change in restart.changes] == [Action.RESTART]
        assert [(field.field, field.after) for field in restart.fields] == [("engine.slots", 9)]
        wrong = await ask("POST", f"{DEPLOYMENTS}:plan", OTHER | {"alias": known["spec"]["alias"]}).call(one.root)
        assert (wrong.status, wrong.error()["param"]) == (400, "alias")
        assert one.world.kernel.head == before


async def test_scaling_leaves_what_runs_alone(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        (known,) = (await get(one, DEPLOYMENTS))["data"]
        path = f"{DEPLOYMENTS}/{known['spec']['deployment']}"
        wrong = (b"if-match", b"7")
        assert (await put(one, f"{path}/replicas", {"replicas": 2}, wrong))[0] == 409
        status, answer = await put(one, f"{path}/replicas", {"replicas": 2})
        assert status == 200
        scaled = structure(DeploymentDocument, answer, closed=True)
        assert (scaled.spec.replicas, scaled.generation) == (2, known["generation"] + 1)
        assert [replica.routable for replica in scaled.status.replicas] == [True]
        assert scaled.status.not_placed
        assert (await ask("GET", f"{DEPLOYMENTS}/none").call(one.root)).status == 404


async def test_the_status_has_no_alert_when_nothing_is_wrong(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        assert structure(StatusDocument, await get(one, "/admin/v1/status")).alerts == ()


async def test_a_clock_that_is_far_off_is_told(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        kernel = one.world.kernel
        name, reading = next(iter(kernel.observed.nodes.items()))
        beat = attrs.evolve(reading.heartbeat, sequence=reading.sequence + 1, skew_ms=-600_000, skew_error_ms=3)
        await kernel.ask(ReportHeartbeat(beat, kernel.state.nodes[name].public_key or ""), name)
        listed = structure(NodeList, await get(one, NODES), closed=True)
        assert {node.node: (node.skew_ms, node.skew_error_ms) for node in listed.data}[name] == (-600_000, 3)
        (alert,) = structure(StatusDocument, await get(one, "/admin/v1/status"), closed=True).alerts
        assert (alert.code, name in alert.message) == ("clock_skew", True)


async def test_a_replica_that_waits_for_its_nodes_lease_is_told(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        kernel = one.world.kernel
        name, reading = next(iter(kernel.observed.nodes.items()))
        (assignment,) = [one.assignment for one in kernel.state.assignments.values() if one.node == name]
        waiting = UnstartedReplica(assignment, ReplicaState.AWAITING_LEASE)
        beat = attrs.evolve(reading.heartbeat, sequence=reading.sequence + 1, replicas=(), unstarted=(waiting,))
        await kernel.ask(ReportHeartbeat(beat, kernel.state.nodes[name].public_key or ""), name)
        document = structure(StatusDocument, await get(one, "/admin/v1/status"), closed=True)
        states = [replica.state for deployment in document.deployments for replica in deployment.replicas]
        assert states == [ReplicaState.AWAITING_LEASE.value]


async def test_an_exclusive_deployment_tells_what_its_place_waits_for(autojump_clock: MockClock) -> None:
    async with edge(autojump_clock) as one:
        (known,) = (await get(one, DEPLOYMENTS))["data"]
        path = f"{DEPLOYMENTS}/{known['spec']['deployment']}"
        status, answer = await put(one, path, known["spec"] | {"exclusive": True})
        assert (status, answer["error"]["param"]) == (400, "cut_off_keep_ms")
        status, _ = await put(one, path, known["spec"] | {"exclusive": True, "cut_off_keep_ms": 0})
        assert status == 200
        (assignment,) = one.world.kernel.state.assignments.values()
        await put(one, f"{NODES}/{assignment.node}/directive", {"directive": "drain"})
        await one.world.kernel.ask(Reconcile(()), "test")
        shown = structure(DeploymentDocument, await get(one, path), closed=True).status
        assert shown.exclusive
        assert [(place.assignment, place.node) for place in shown.awaited_places] == [
            (assignment.assignment, assignment.node)
        ]
