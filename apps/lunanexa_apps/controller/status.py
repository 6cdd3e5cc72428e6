"""The status document: everything on one page, for people and for ``lunanexa status``."""

from collections.abc import Sequence

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.alerts import alerts
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.canonical import JsonValue
from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.identity.enrol import good_tokens
from lunanexa_core.identity.token import KnownToken
from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId
from lunanexa_core.placement.declined import declined_by
from lunanexa_core.placement.roster import awaited_places, refusals, roster
from lunanexa_core.placement.standing import view_of
from lunanexa_core.routing.routable import routable_replicas, why_not_routable
from lunanexa_core.southbound.heartbeat import ReplicaReport
from lunanexa_core.state import Node, Totals
from lunanexa_core.workload import Receipt

_RECEIPTS = 10


def status_document(kernel: Kernel, version: str) -> JsonValue:
    """What is, at this instant. Ages are milliseconds by the controller's own clock."""
    state, tokens = kernel.state, good_tokens(kernel.state, kernel.now())
    totals = Totals()
    for tenant in state.totals.values():
        totals = Totals(
            requests=totals.requests + tenant.requests,
            succeeded=totals.succeeded + tenant.succeeded,
            failed=totals.failed + tenant.failed,
            cancelled=totals.cancelled + tenant.cancelled,
            usage=totals.usage.plus(tenant.usage),
        )
    return {
        "version": version,
        "cluster": state.cluster,
        "epoch": state.epoch,
        "sequence": kernel.head.sequence,
        "leading": kernel.leading,
        "leader": kernel.leader or None,
        "snapshot": kernel.snapshot_at,
        "draining": kernel.observed.draining,
        "recovering": unstructure(state.recovery or ()),
        "store_ok": kernel.store_ok,
        "alerts": alerts(kernel),
        "nodes": [node_status(kernel, node, tokens.get(name)) for name, node in sorted(state.nodes.items())],
        "deployments": [deployment_status(kernel, deployment) for _, deployment in sorted(state.deployments.items())],
        "usage": {
            "requests": totals.requests,
            "succeeded": totals.succeeded,
            "failed": totals.failed,
            "cancelled": totals.cancelled,
            "input_tokens": totals.usage.input_tokens,
            "output_tokens": totals.usage.output_tokens,
            "estimated": totals.usage.estimated,
        },
        "receipts": [receipt_document(receipt) for receipt in list(state.receipts.values())[-_RECEIPTS:][::-1]],
    }


def receipt_document(receipt: Receipt) -> dict[str, JsonValue]:
    """A receipt as operators see it."""
    settlement = receipt.settlement
    return {
        "workload": receipt.workload,
        "request": receipt.request,
        "tenant": receipt.tenant,
        "key": receipt.key,
        "alias": receipt.alias,
        "dialect": receipt.dialect.value,
        "state": receipt.state.value,
        "outcome": None if settlement.outcome is None else settlement.outcome.value,
        "detail": settlement.detail,
        "input_tokens": settlement.usage.input_tokens,
        "output_tokens": settlement.usage.output_tokens,
        "estimated": settlement.usage.estimated,
        "queue_ms": settlement.queue_ms,
        "first_output_ms": settlement.first_output_ms,
        "total_ms": settlement.total_ms,
        "attempts": unstructure(settlement.attempts),
    }


def node_status(kernel: Kernel, node: Node, token: KnownToken | None) -> dict[str, JsonValue]:
    """One node, with the token by which it may enrol."""
    reading, wall_ms = kernel.observed.nodes.get(node.node), kernel.now().wall_ms
    heartbeat = None if reading is None else reading.heartbeat
    newest = node.certificates[-1] if node.certificates else None
    return {
        "node": node.node,
        "state": node.liveness.value,
        "directive": node.directive.value,
        "reason": node.directive_reason,
        "within_ms": node.directive_within_ms,
        "retired": node.retired,
        "revoked": node.revoked,
        "enrolled": node.public_key is not None,
        "enrolled_wall_ms": node.enrolled_wall_ms,
        "token_expires_in_ms": None if token is None else token.expires_wall_ms - wall_ms,
        "certificate": None
        if newest is None
        else {
            "serial": newest.serial,
            "issuer": newest.issuer,
            "expires_in_ms": newest.not_after_wall_ms - wall_ms,
        },
        "data_address": node.data_address,
        "trust_version": None if heartbeat is None else heartbeat.trust_version,
        "boot": node.boot,
        "generation": node.generation,
        "agent_version": node.agent_version,
        "heartbeat_age_ms": None if reading is None else kernel.now().mono_ms - reading.arrived_mono_ms,
        "available_mib": None if heartbeat is None else heartbeat.available_mib,
        "total_mib": None if heartbeat is None else heartbeat.total_mib,
        "document_refusal": None if heartbeat is None else heartbeat.document_refusal,
        "refused": [] if heartbeat is None else unstructure(heartbeat.refused),
        "skew_ms": None if heartbeat is None else heartbeat.skew_ms,
        "skew_error_ms": None if heartbeat is None else heartbeat.skew_error_ms,
    }


def deployment_status(kernel: Kernel, deployment: Deployment) -> dict[str, JsonValue]:
    """One deployment and its replicas."""
    state, observed, spec = kernel.state, kernel.observed, deployment.spec
    now = kernel.now()
    routable = routable_replicas(state, observed, kernel.policy, spec.deployment, now)
    queue = observed.queues.get(spec.deployment)
    own = [key for key, assignment in sorted(state.assignments.items()) if assignment.deployment == spec.deployment]
    placement: dict[str, JsonValue] = {}
    view, assigned = view_of(state, observed, kernel.policy, now), [state.assignments[name] for name in own]
    if roster(view, deployment, assigned).open:
        against = refusals(state, observed, deployment)
        placement = {node: [reason.value for reason in reasons] for node, reasons in against.items()}
    return {
        "deployment": spec.deployment,
        "alias": spec.alias,
        "generation": deployment.generation,
        "driver": spec.engine.driver,
        "served_name": spec.engine.served_name,
        "adopted": spec.engine.url is not None,
        "ready": bool(routable),
        "queue": {
            "waiting": 0 if queue is None else len(queue),
            "running": sum(1 for held in observed.held.values() if held.deployment == spec.deployment),
            "slots": sum(report.slots for report in routable),
            "limit": kernel.policy.queue_requests_max,
        },
        "replicas_wanted": spec.replicas,
        "not_placed": placement,
        "declined": _declined(kernel, spec.deployment, assigned),
        "exclusive": spec.exclusive,
        "awaited_places": unstructure(awaited_places(view, deployment, assigned)),
        "replicas": [_replica(kernel, assignment_id) for assignment_id in own],
    }


def _declined(kernel: Kernel, deployment: DeploymentId, assigned: Sequence[Assignment]) -> JsonValue:
    """Also what is refused for as long only as something else runs there."""
    declined = declined_by(kernel.state, kernel.observed, deployment)
    found: dict[str, JsonValue] = {str(node): refusal for node, refusal in declined.items()}
    names = {one.assignment for one in assigned}
    for node in sorted({one.node for one in assigned} & kernel.observed.nodes.keys()):
        for refused in kernel.observed.nodes[node].heartbeat.refused:
            if refused.assignment in names:
                found[node] = refused.refusal
    return found


def _replica(kernel: Kernel, assignment_id: AssignmentId) -> JsonValue:
    assignment = kernel.state.assignments[assignment_id]
    document: dict[str, JsonValue] = {
        "assignment": assignment_id,
        "node": assignment.node,
        "generation": assignment.generation,
        "state": "assigned",
        "start": None,
        "identity": None,
        "pid": None,
        "slots": 0,
        "restarts": 0,
        "exit": None,
        "running": None,
        "waiting": None,
        "memory_mib": None,
        "routable": False,
        "not_routable": None,
    }
    report = kernel.state.replicas.get(assignment_id)
    if report is not None:
        document |= _reported(kernel, report)
    else:
        document["state"] = _unstarted(kernel, assignment_id, assignment.node) or document["state"]
    return document


def _unstarted(kernel: Kernel, name: AssignmentId, node: NodeId) -> str | None:
    """Where a replica is of which its node has started nothing yet."""
    reading = kernel.observed.nodes.get(node)
    unstarted = () if reading is None else reading.heartbeat.unstarted
    return next((one.state.value for one in unstarted if one.assignment == name), None)


def _reported(kernel: Kernel, report: ReplicaReport) -> dict[str, JsonValue]:
    newest = kernel.observed.replicas.get(report.assignment, report)
    reason = why_not_routable(kernel.state, kernel.observed, kernel.policy, report, kernel.now())
    return {
        "state": report.state.value,
        "start": report.start,
        "identity": report.identity.value,
        "pid": report.pid,
        "slots": report.slots,
        "restarts": report.restarts,
        "exit": unstructure(newest.exit),
        "running": newest.readings.running,
        "waiting": newest.readings.waiting,
        "memory_mib": newest.readings.resident_mib,
        "routable": reason is None,
        "not_routable": None if reason is None else reason.value,
    }
