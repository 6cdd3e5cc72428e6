"""``apply``: the one way in which state changes. Pure but for the state that it is given to change."""

from typing import Final, TypeVar, assert_never

import attrs

from lunanexa_core import events
from lunanexa_core.admission.limits import used_tokens
from lunanexa_core.admission.windows import KeyWindows
from lunanexa_core.binding import Binding, frees_key
from lunanexa_core.deployment import Deployment
from lunanexa_core.events import Event
from lunanexa_core.identity.record import record, record_revocation
from lunanexa_core.ids import AssignmentId, BootId, KeyId, NodeId
from lunanexa_core.placement.bound import bound_in_force
from lunanexa_core.southbound.controllers import record_leader
from lunanexa_core.southbound.heartbeat import ReplicaReport, ReplicaState
from lunanexa_core.state import PAST_BOOTS, RECENT_RECEIPTS, Leaving, Node, OpenWorkload, State, Totals
from lunanexa_core.workload import LedgerPlace, Receipt

K = TypeVar("K")

APPLY_VERSION: Final = 4
"""Of what ``apply`` makes of events, and of the form in which it does. Raise it with each change of either: a snapshot
that another version made is not used, and state is rebuilt from the rows."""


def apply(  # noqa: C901, PLR0915  # one arm an event
    state: State, event: Event, *, epoch: int, wall_ms: int = 0, place: LedgerPlace | None = None
) -> None:
    """Changes ``state`` by one event of the given epoch and wall time, at its place in the ledger. It never refuses:
    an event was decided."""
    match event:
        case events.ClusterCreated(cluster=cluster):
            state.cluster = cluster
        case events.EpochBegan():
            record_leader(state, event, epoch, wall_ms)
        case events.KeyCreated(key=key):
            state.keys[key.key] = key
            state.key_of_digest[key.digest] = key.key
            _sweep_windows(state, wall_ms)
        case events.KeyRevoked(key=key_id):
            _revoke(state, key_id)
            _sweep_windows(state, wall_ms)
        case events.NodeRegistered(node=node):
            state.nodes.setdefault(node, Node(node=node))
        case events.EnrolmentEnded(node=node):
            state.nodes[node] = attrs.evolve(state.nodes[node], public_key=None, agent_version=None)
        case events.TrustChanged() | events.EnrolmentTokenMinted() | events.NodeEnrolled() | events.NodeCertified():
            record(state, event, wall_ms)
        case events.NodeRevoked(node=node):
            record_revocation(state, event, wall_ms)
            _forget_replicas(state, node)
        case events.NodeAddressed(node=node, data_address=address):
            state.nodes[node] = attrs.evolve(state.nodes[node], data_address=address)
        case events.NodeBooted(node=node, boot=boot):
            _boot(state, node, boot)
        case events.LivenessChanged(node=node, liveness=liveness):
            state.nodes[node] = attrs.evolve(state.nodes[node], liveness=liveness)
        case events.DirectiveChanged():
            _direct(state, event, wall_ms)
        case events.NodeRetired(node=node):
            state.nodes[node] = attrs.evolve(state.nodes[node], retired=True, liveness=events.Liveness.UNKNOWN)
            _forget_replicas(state, node)
        case events.DeploymentApplied(deployment=deployment):
            _deploy(state, deployment)
        case events.DeploymentRemoved(deployment=deployment_id):
            _drop_alias(state, deployment_id)
            del state.deployments[deployment_id]
        case events.AssignmentPlaced(assignment=assignment):
            state.assignments[assignment.assignment] = assignment
            _next_generation(state, assignment.node)
        case events.AssignmentRemoved(assignment=assignment_id):
            _remove(state, assignment_id)
        case events.ReplicasGone(assignments=gone):
            for assignment_id in gone:
                del state.leaving[assignment_id]
        case events.ReplicaChanged(node=node, report=report):
            _report(state, node, report)
        case events.RecoveryBegan(reasons=reasons):
            state.recovery = reasons
        case events.StoreRebased(above=above, generations=generations):
            state.recovery, state.rebased, state.epoch = None, above, epoch
            _raise_generations(state, generations)
        case events.WorkloadAdmitted():
            _admit(state, event, epoch, wall_ms, place)
        case events.WorkloadSettled(receipt=receipt):
            _settle(state, receipt, wall_ms)
            _remember(state, receipt, place)
        case events.BindingsEnded(keys=keys):
            for bound in keys:
                _unbind(state, bound)
        case events.LedgerPruned():
            state.pruned = event.pruned
        case _:
            assert_never(event)


def _raise_generations(state: State, generations: tuple[events.NodeGeneration, ...]) -> None:
    for raised in generations:
        state.nodes[raised.node] = attrs.evolve(state.nodes[raised.node], generation=raised.generation)


def _deploy(state: State, deployment: Deployment) -> None:
    _drop_alias(state, deployment.spec.deployment)
    state.deployments[deployment.spec.deployment] = deployment
    state.deployment_of_alias[deployment.spec.alias] = deployment.spec.deployment


def _boot(state: State, node: NodeId, boot: BootId) -> None:
    known_boot, past = state.nodes[node].boot, state.nodes[node].past_boots
    past = past if known_boot is None else (*past, known_boot)[-PAST_BOOTS:]
    state.nodes[node] = attrs.evolve(state.nodes[node], boot=boot, past_boots=past)


def _direct(state: State, changed: events.DirectiveChanged, wall_ms: int) -> None:
    state.nodes[changed.node] = attrs.evolve(
        state.nodes[changed.node],
        directive=changed.directive,
        directive_wall_ms=wall_ms,
        directive_reason=changed.reason,
        directive_within_ms=changed.within_ms,
    )
    _next_generation(state, changed.node)


def _remove(state: State, name: AssignmentId) -> None:
    removed = state.assignments[name]
    bound_ms = bound_in_force(state, removed)
    del state.assignments[name]
    _next_generation(state, removed.node)
    if bound_ms is None and state.nodes[removed.node].revoked:
        return  # Given up with its node, as by _forget_replicas.
    state.leaving[name] = Leaving(
        deployment=removed.deployment,
        node=removed.node,
        generation=state.nodes[removed.node].generation,
        bound_ms=bound_ms,
    )


def _forget_replicas(state: State, node: NodeId) -> None:
    """Of a retired or revoked node. What may run there without limit is given up with it, by an operator's word."""
    for assignment_id in [name for name, owner in state.replica_node.items() if owner == node]:
        del state.replicas[assignment_id], state.replica_node[assignment_id]
    for assignment_id, leaving in list(state.leaving.items()):
        if leaving.node == node and leaving.bound_ms is None:
            del state.leaving[assignment_id]


def _report(state: State, node: NodeId, report: ReplicaReport) -> None:
    if report.state is ReplicaState.ABSENT:
        state.replicas.pop(report.assignment, None)
        state.replica_node.pop(report.assignment, None)
    else:
        state.replicas[report.assignment] = report
        state.replica_node[report.assignment] = node


def _admit(
    state: State, admitted: events.WorkloadAdmitted, epoch: int, wall_ms: int, place: LedgerPlace | None
) -> None:
    counted = _take(state, admitted.key, admitted.request.reserved_tokens, wall_ms)
    workload = OpenWorkload(
        request=admitted.request,
        key=admitted.key,
        tenant=admitted.tenant,
        deployment=admitted.deployment,
        epoch=epoch,
        window_wall_ms=wall_ms if counted else None,
    )
    _bind(state, workload, wall_ms)
    state.open[workload.request.workload] = workload
    _add(state.open_of_key, workload.key, 1)
    _add(state.open_of_deployment, workload.deployment, 1)
    if place is not None:
        state.admitted[workload.request.workload] = place.sequence


def _bind(state: State, workload: OpenWorkload, wall_ms: int) -> None:
    request = workload.request
    if request.idempotency is None:
        return
    if request.idempotency in state.bindings:
        _unbind(state, request.idempotency)  # Its time is over, and no tick has come since.
    state.bindings[request.idempotency] = Binding(
        tenant=workload.tenant,
        workload=request.workload,
        body=request.binding or "",
        since_wall_ms=wall_ms,
        retain_ms=request.retain_ms or 0,
    )
    state.bound[request.workload] = request.idempotency
    _add(state.bindings_of_tenant, workload.tenant, 1)


def _bind_to_end(state: State, workload: OpenWorkload, receipt: Receipt, wall_ms: int) -> None:
    key = workload.request.idempotency
    if key is None:
        return
    if frees_key(receipt.settlement):
        _unbind(state, key)
        return
    ended = attrs.evolve(state.bindings.pop(key), since_wall_ms=wall_ms, kept=receipt.settlement.kept)
    state.bindings[key] = ended  # Last: the table is in the order of their times.


def _unbind(state: State, key: str) -> None:
    binding = state.bindings.pop(key)
    state.bound.pop(binding.workload, None)
    _add(state.bindings_of_tenant, binding.tenant, -1)


def _revoke(state: State, key_id: KeyId) -> None:
    digest = state.keys.pop(key_id).digest
    if state.key_of_digest.get(digest) == key_id:  # Another key may have been given this secret meanwhile.
        del state.key_of_digest[digest]
    state.totals_of_key.pop(key_id, None)


def _settle(state: State, receipt: Receipt, wall_ms: int) -> None:
    workload = state.open.pop(receipt.workload)
    _bind_to_end(state, workload, receipt, wall_ms)
    _add(state.open_of_key, workload.key, -1)
    _add(state.open_of_deployment, workload.deployment, -1)
    state.totals[receipt.tenant] = state.totals.get(receipt.tenant, Totals()).plus(receipt)
    if receipt.key in state.keys:
        state.totals_of_key[receipt.key] = state.totals_of_key.get(receipt.key, Totals()).plus(receipt)
    windows = state.windows.get(workload.key)
    if workload.window_wall_ms is not None and windows is not None:
        settled = windows.settle(
            wall_ms,
            workload.window_wall_ms,
            reserved=workload.request.reserved_tokens,
            used=used_tokens(receipt.settlement),
        )
        _keep(state, workload.key, settled, wall_ms)


def _remember(state: State, receipt: Receipt, place: LedgerPlace | None) -> None:
    """Keeps the newest receipts at hand."""
    state.receipts[receipt.workload] = receipt
    if place is not None:
        state.places[receipt.workload] = place
    if len(state.receipts) > RECENT_RECEIPTS:
        oldest = next(iter(state.receipts))
        del state.receipts[oldest]
        state.places.pop(oldest, None)
        state.admitted.pop(oldest, None)


def _take(state: State, key_id: KeyId, tokens: int, wall_ms: int) -> bool:
    """Takes one request from the windows of its key; whether it has any."""
    key = state.keys.get(key_id)
    if key is None or (key.requests_per_minute is None and key.tokens_per_minute is None):
        return False
    _keep(state, key_id, state.windows.get(key_id, KeyWindows()).take(wall_ms, tokens), wall_ms)
    return True


def _keep(state: State, key_id: KeyId, windows: KeyWindows, wall_ms: int) -> None:
    if windows.is_empty(wall_ms):
        state.windows.pop(key_id, None)
    else:
        state.windows[key_id] = windows


def _sweep_windows(state: State, wall_ms: int) -> None:
    """A key that is used no more would keep its windows for ever."""
    for key_id, windows in list(state.windows.items()):
        _keep(state, key_id, windows, wall_ms)


def _next_generation(state: State, node: NodeId) -> None:
    state.nodes[node] = attrs.evolve(state.nodes[node], generation=state.nodes[node].generation + 1)


def _drop_alias(state: State, deployment: object) -> None:
    for alias, owner in list(state.deployment_of_alias.items()):
        if owner == deployment:
            del state.deployment_of_alias[alias]


def _add(counter: dict[K, int], key: K, by: int) -> None:
    """Counters that are zero leave the table, so that a table at rest is empty."""
    total = counter.get(key, 0) + by
    assert total >= 0, key
    if total:
        counter[key] = total
    else:
        del counter[key]
