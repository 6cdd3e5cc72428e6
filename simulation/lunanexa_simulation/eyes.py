"""Connects a world to its checkers: where what they look at comes from."""

from collections.abc import Mapping, Sequence

from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_simulation.checkers import Checkers
from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.engine_program import LOG_SECRET
from lunanexa_simulation.installation import Secrets
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.run import Run
from lunanexa_simulation.sight import OpenPassage


class Eyes:
    """Keeps a sight in force, and asks its checkers."""

    def __init__(
        self,
        run: Run,
        checkers: Checkers,
        *,
        controllers: Sequence[ControllerHost],
        nodes: Sequence[NodeHost],
        secrets: Secrets,
    ) -> None:
        self._run = run
        self._checkers = checkers
        self._controllers = controllers
        self._nodes = nodes
        self._secrets = secrets
        self._logs_read = 0
        self._engine_keys: set[tuple[AssignmentId, int]] = set()
        """Planted already."""
        sight = checkers.sight
        self._planted = {**secrets.planted(), "an engine's log": LOG_SECRET}
        sight.secrets = self._planted
        sight.fences = self._fences
        sight.running = self._running
        sight.at_doors = self._at_doors
        sight.new_texts = self._new_texts

    def plant(self, name: str, secret: str) -> None:
        """One secret more that may be shown nowhere."""
        self._planted[name] = secret

    def look(self) -> None:
        """The check of a quiescent instant."""
        sight = self._checkers.sight
        up = [host for host in self._controllers if host.up]
        # One that another took the lead from may still say that it leads, and be the only one that does.
        taken = self._controllers[0].durable().head.epoch
        leading = [host.kernel for host in up if host.kernel.leading and host.kernel.epoch >= taken]
        sight.kernel = kernel = max(leading, key=lambda kernel: kernel.epoch, default=None)
        sight.writers = [host.host for host in up if host.kernel.may_write]
        if kernel is not None:
            for assignment in kernel.state.assignments.values():
                if (assignment.assignment, assignment.generation) not in self._engine_keys:
                    self._engine_keys.add((assignment.assignment, assignment.generation))
                    self.plant(*self._secrets.of_engine(assignment))
        self._checkers.look()

    def _fences(self) -> Mapping[str, tuple[int, int]]:
        return {node.name: fence for node in self._nodes if (fence := node.accepted()) is not None}

    def _running(self) -> Sequence[tuple[AssignmentId, StartId]]:
        return [pair for node in self._nodes for pair in node.running()]

    def _at_doors(self) -> Sequence[OpenPassage]:
        return [passage for node in self._nodes for passage in node.at_door()]

    def _new_texts(self) -> Sequence[tuple[str, str]]:
        lines = self._run.logs.since(self._logs_read)
        self._logs_read = self._run.logs.written
        metrics = [series for host in self._controllers for series in host.metrics.new_series()]
        return [*(("a log line", line) for line in lines), *(("the metrics", text) for text in metrics)]
