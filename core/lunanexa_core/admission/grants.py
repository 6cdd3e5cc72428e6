"""What a key, a deployment and this installation allow a request to ask for."""

from typing import Final

from lunanexa_core.deployment import DeploymentSpec
from lunanexa_core.ids import Alias
from lunanexa_core.keys import ApiKey
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.workload import WorkloadRequest

NO_CAPTURE: Final = Refusal(
    outcome=Outcome.RETENTION_UNAVAILABLE,
    message="EvaluationCapture is not on offer here; ask for Ephemeral or RetainFor.",
    param="data_policy.retention",
)


def may_use(key: ApiKey, alias: Alias) -> bool:
    """Whether the alias exists for this key."""
    return not key.aliases or alias in key.aliases


def no_model(alias: Alias) -> Refusal:
    """None for this key."""
    return Refusal(
        outcome=Outcome.MODEL_NOT_FOUND,
        message=f"The model {alias[:256]!r} does not exist or this key may not use it.",
        param="model",
    )


def not_granted(key: ApiKey, request: WorkloadRequest) -> Refusal | None:
    """Why the key may not ask for this at all."""
    if request.tenant is not None and request.tenant != key.tenant:
        return _denied("tenant", f"This key does not belong to the tenant {request.tenant!r}.")
    if not may_use(key, request.alias):
        return no_model(request.alias)
    if request.priority.band > key.priority_max.band:
        return _denied("priority", f"This key may ask for the priority {key.priority_max.value} at most.")
    if request.classification.rank > key.data_class_max.rank:
        most = key.data_class_max.value
        return _denied("data_policy.classification", f"This key may send data up to the class {most}.")
    return None


def not_for_deployment(spec: DeploymentSpec, request: WorkloadRequest) -> Refusal | None:
    """Why the data may not go to this deployment."""
    if request.classification.rank <= spec.data_class_max.rank:
        return None
    most = spec.data_class_max.value
    return _denied("data_policy.classification", f"The model {spec.alias!r} takes data up to the class {most}.")


def not_retained(retain_ms: int | None, retain_ms_max: int) -> Refusal | None:
    """Why an answer is not kept for so long."""
    if retain_ms is None or retain_ms <= retain_ms_max:
        return None
    offer = f"RetainFor is offered up to {retain_ms_max} ms here" if retain_ms_max else "No answer is kept here"
    return Refusal(
        outcome=Outcome.RETENTION_UNAVAILABLE,
        message=f"{offer}; Ephemeral is always on offer.",
        param="data_policy.retention",
    )


def _denied(param: str, message: str) -> Refusal:
    return Refusal(outcome=Outcome.PERMISSION_DENIED, message=message, param=param)
