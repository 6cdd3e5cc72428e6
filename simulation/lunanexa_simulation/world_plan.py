"""What a simulated world is made of."""

from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_apps.controller.gateway.settings import GatewaySettings
from lunanexa_core.policy import Policy

NODES_MAX: Final = 100


@attrs.frozen(kw_only=True)
class WorldPlan:
    """Of a scenario, or of a session on real time."""

    nodes: int = attrs.field(
        default=1, validator=attrs.validators.and_(attrs.validators.ge(1), attrs.validators.le(NODES_MAX))
    )
    latency_ms: tuple[int, int] = (1, 4)
    sync_ms: int = 2
    """How long a disk takes until a write is durable."""
    policy: Policy = attrs.Factory(Policy)
    snapshot_rows: int = 20
    """Few, so that runs of seconds are restarted from snapshots."""
    gateway: GatewaySettings = attrs.Factory(GatewaySettings)
    engine_arguments: tuple[str, ...] = ("--ttft-ms", "32", "--itl-ms", "16")
    engine_slots: int = 4
    restart_budget: int = 5
    engine_memory: Mapping[str, int] = attrs.Factory(dict)
    """What the engine's specification says of memory, by member."""
    specification: Mapping[str, object] = attrs.Factory(dict)
    """What the deployment's specification says beside its engine."""
    linger_ms: int = 3_000
    """How long a killed process stays in the kernel's hands."""
    doors: bool = True
    """Whether each node has a data listener, over mutual TLS; else its engines are reached in the clear."""
    controllers: int = 1
    """How many share the journal; one of them leads."""
    controllers_told: int | None = None
    """Of how many, from the first on, nodes are told at enrolment; ``None``: of all."""
