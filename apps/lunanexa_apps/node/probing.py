"""Looks at an engine again and again, exactly while the state of its replica wants one."""

from collections.abc import Callable
from typing import Final

import attrs
import trio

from lunanexa_apps.node.settings import LocalPorts, NodeSettings
from lunanexa_apps.node.sight import Sight
from lunanexa_core.drivers.catalog import DRIVERS
from lunanexa_core.ids import StartId
from lunanexa_core.lifecycle.observations import Probed
from lunanexa_core.lifecycle.record import ReplicaRecord, ReplicaRules
from lunanexa_core.southbound.heartbeat import ReplicaState
from lunanexa_ports.processes import ManagedProcess

_FIRST_S: Final = 0.05
_DRAIN_S: Final = 0.2
_PROBED_STATES: Final = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING)


class Probing:
    """The one probe task of a replica. ``seen`` is called with each look, ``state`` tells how often to look."""

    def __init__(
        self,
        ports: LocalPorts,
        settings: NodeSettings,
        rules: ReplicaRules,
        seen: Callable[[Probed], None],
        state: Callable[[], ReplicaState],
    ) -> None:
        self._ports = ports
        self._settings = settings
        self._rules = rules
        self._seen = seen
        self._state = state
        self._running: tuple[StartId, trio.CancelScope] | None = None

    @property
    def running(self) -> bool:
        return self._running is not None

    def keep(self, nursery: trio.Nursery, record: ReplicaRecord, process: ManagedProcess | None) -> None:
        """A task runs for the present start exactly while its state wants one."""
        there = self._rules.adopted or process is not None
        # A record of a later version of this program may name a driver that this one has not.
        known = record.host is not None and record.assignment.engine.driver in DRIVERS
        wanted = record.start if record.state in _PROBED_STATES and there and known else None
        if self._running is not None and self._running[0] != wanted:
            self._running[1].cancel("another start, or none")
            self._running = None
        if wanted is not None and self._running is None:
            scope = trio.CancelScope()
            self._running = (wanted, scope)
            url, key = record.assignment.engine.url, record.assignment.engine_key
            key = key if url is None else self._settings.adopted_keys.get(url)
            sight = Sight(self._ports, record, None if process is None else process.identity, key)
            nursery.start_soon(self._probe, sight, process if self._rules.memory_limit_mib else None, scope)

    async def _probe(self, sight: Sight, weighed: ManagedProcess | None, scope: trio.CancelScope) -> None:
        with scope:
            waited_s = _FIRST_S
            while True:
                probed = await sight.probe(self._settings.probe_timeout_ms)
                self._seen(probed if weighed is None else attrs.evolve(probed, resident_mib=weighed.resident_mib()))
                usual_s = self._settings.probe_ms / 1_000
                match self._state():
                    case ReplicaState.STARTING:
                        waited_s = min(usual_s, waited_s * 1.5)
                    case ReplicaState.DRAINING:
                        waited_s = min(usual_s, _DRAIN_S)
                    case _:
                        waited_s = usual_s
                await trio.sleep(waited_s)
