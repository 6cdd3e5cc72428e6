"""How long a new request will wait for a slot, as far as it can be told: those before it, a slot's time each."""

from lunanexa_core.ids import DeploymentId
from lunanexa_core.observed import Observed

SMOOTHING = 8
"""The measured time of service moves by one part in so many towards each new one."""


def measured(observed: Observed, deployment: DeploymentId, service_ms: int) -> None:
    """Takes one time of service (grant to receipt) into the mean. Changes ``observed`` alone."""
    before = observed.service_ms.get(deployment, service_ms)
    observed.service_ms[deployment] = (before * (SMOOTHING - 1) + service_ms) // SMOOTHING


def predicted_wait_ms(observed: Observed, deployment: DeploymentId, *, in_progress: int, slots: int) -> int:
    """The predicted wait of one more request; 0 while a slot is free or nothing was measured yet."""
    before_it = in_progress - slots + 1
    if before_it <= 0 or slots <= 0:
        return 0
    return before_it * observed.service_ms.get(deployment, 0) // slots
