"""A deployment's next generation: what becomes of it with another specification."""

import attrs

from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.specification import bad_specification
from lunanexa_core.state import State


def changed(state: State, spec: DeploymentSpec, if_match: int | None = None) -> Deployment | Refusal:
    """The deployment with this specification: the one that is, where that says the same. ``if_match``: only from
    this generation (0: only when new)."""
    refusal = bad_specification(state, spec)
    if refusal is not None:
        return refusal
    current = state.deployments.get(spec.deployment)
    generation = 0 if current is None else current.generation
    if if_match is not None and if_match != generation:
        return Refusal(
            outcome=Outcome.STALE_GENERATION,
            message=f"The deployment is at generation {generation}, not {if_match}.",
            param="If-Match",
        )
    if current is None:
        return Deployment(spec=spec, generation=1)
    if current.spec == spec:
        return current
    next_one = Deployment(spec=spec, generation=generation + 1)
    if (current.spec.engine, current.spec.cut_off_keep_ms) == (spec.engine, spec.cut_off_keep_ms):
        return attrs.evolve(next_one, engine_generation=current.runs)
    return next_one
