"""May this request come in? One pass of checks, all or nothing; after a refusal nothing is held."""

import hmac

import attrs

from lunanexa_core.admission.grants import no_model, not_for_deployment, not_granted, not_retained
from lunanexa_core.admission.idempotency import known_request
from lunanexa_core.admission.limits import over_limit
from lunanexa_core.admission.wait import predicted_wait_ms
from lunanexa_core.binding import Ended, bound_key
from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.drivers.catalog import dialects_of
from lunanexa_core.events import WorkloadAdmitted
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.observed import Observed
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.declined import declined_by
from lunanexa_core.policy import Policy
from lunanexa_core.routing.routable import replicas_of, routable_replicas
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_core.state import State
from lunanexa_core.time import Instant
from lunanexa_core.workload import WorkloadRequest

KEY_REFUSED = Refusal(outcome=Outcome.INVALID_API_KEY, message="The API key is missing, unknown, expired or revoked.")

ACTIVE = Refusal(outcome=Outcome.WORKLOAD_ACTIVE, message="A workload of this id exists already.", param="workload_id")


def authenticate(state: State, digest: str, now: Instant) -> ApiKey | Refusal:
    """The key in force whose secret has this digest."""
    key_id = state.key_of_digest.get(digest)
    if key_id is None:
        return KEY_REFUSED
    key = state.keys[key_id]
    if key.expired(now.wall_ms) or not hmac.compare_digest(key.digest, digest):
        return KEY_REFUSED
    return key


def authorise(state: State, digest: str, role: Role, now: Instant) -> ApiKey | Refusal:
    """The key, if it holds ``role``."""
    key = authenticate(state, digest, now)
    if isinstance(key, Refusal) or role in key.roles:
        return key
    return Refusal(outcome=Outcome.PERMISSION_DENIED, message=f"This key does not hold the role {role.value!r}.")


def admit(
    state: State, observed: Observed, policy: Policy, request: WorkloadRequest, now: Instant
) -> WorkloadAdmitted | Ended | Refusal:
    """The admission, or the first reason against it; or what became of the request that this one repeats. The order
    is: who asks, may it, was it asked before, for what, can it: for what has ended nothing need be able any more."""
    key = authorise(state, request.key_digest, Role.INFERENCE, now)
    if isinstance(key, Refusal):
        return key
    settled = not_granted(key, request) or known_request(state, policy, key.tenant, request, now)
    if settled is not None:
        return settled
    deployment_id = state.deployment_of_alias.get(request.alias)
    if deployment_id is None:
        return no_model(request.alias)
    spec = state.deployments[deployment_id].spec
    refused = (
        not_for_deployment(spec, request)
        or not_retained(request.retain_ms, policy.retain_ms_max)
        or _not_now(state, observed, spec, request, now)
    )
    if refused is not None:
        return refused
    replicas = routable_replicas(state, observed, policy, deployment_id, now)
    if not replicas:
        return _why_none(state, observed, request)
    slots = sum(report.slots for report in replicas)
    limited = over_limit(state, key, request, now) or _no_room(state, observed, policy, request, slots)
    if limited is not None:
        return limited
    if request.idempotency is not None:
        request = attrs.evolve(request, idempotency=bound_key(key.tenant, request.idempotency))
    return WorkloadAdmitted(request=request, key=key.key, tenant=key.tenant, deployment=deployment_id)


def _not_now(
    state: State, observed: Observed, spec: DeploymentSpec, request: WorkloadRequest, now: Instant
) -> Refusal | None:
    if request.dialect not in dialects_of(spec.engine):
        return Refusal(
            outcome=Outcome.UNSUPPORTED_ENDPOINT,
            message=f"The model {request.alias!r} does not serve {request.dialect.path}.",
        )
    if observed.draining:
        return Refusal(outcome=Outcome.DRAINING, message="The service is draining and takes no new work.")
    if observed.sessions.get(request.session, -1) <= now.mono_ms:
        return Refusal(outcome=Outcome.STARTING, message="The gateway has no session yet.")
    if any(request.workload in table for table in (state.open, state.receipts, state.bound)):
        return ACTIVE
    return None


def _no_room(state: State, observed: Observed, policy: Policy, request: WorkloadRequest, slots: int) -> Refusal | None:
    """Why the queue has no place for it, or none that would be reached in time."""
    deployment_id = state.deployment_of_alias[request.alias]
    in_progress = state.open_of_deployment.get(deployment_id, 0)
    if in_progress >= slots + policy.queue_requests_max:
        return Refusal(outcome=Outcome.QUEUE_FULL, message=f"{policy.queue_requests_max} requests wait already.")
    wait_ms = predicted_wait_ms(observed, deployment_id, in_progress=in_progress, slots=slots)
    if wait_ms <= request.deadline_ms:
        return None
    return Refusal(
        outcome=Outcome.DEADLINE_UNREACHABLE,
        message=f"The wait for a slot, about {wait_ms} ms, would pass the deadline of {request.deadline_ms} ms.",
        retry_after_ms=wait_ms - request.deadline_ms,
    )


def _why_none(state: State, observed: Observed, request: WorkloadRequest) -> Refusal:
    """Nothing can serve the alias now: what an ordinary caller may know of it."""
    deployment_id = state.deployment_of_alias[request.alias]
    states = {report.state for report in replicas_of(state, deployment_id)}
    declined = declined_by(state, observed, deployment_id)
    assigned = (assignment for assignment in state.assignments.values() if assignment.deployment == deployment_id)
    if all(assignment.node in declined for assignment in assigned):
        return Refusal(outcome=Outcome.NO_PLACEMENT, message="No node can take this model now.")
    if states and states <= {ReplicaState.FAILED}:
        return Refusal(outcome=Outcome.NO_CAPACITY, message="No replica of this model is running.")
    adopted = state.deployments[deployment_id].spec.engine.url is not None
    told = "The model does not answer at the moment." if adopted else "The model is starting."
    return Refusal(outcome=Outcome.STARTING, message=told)
