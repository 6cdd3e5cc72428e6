"""What checkers read from a node's disk."""

from lunanexa_apps.codec import decode
from lunanexa_core.ids import AssignmentId, StartId
from lunanexa_core.lifecycle.record import ReplicaRecord
from lunanexa_core.southbound.documents import DesiredState, SignedDocument
from lunanexa_simulation.disk import SimulatedDisk
from lunanexa_simulation.node_store import NodeStoreState


class SeenOnDisk:
    """Each value is decoded once."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk
        self._document: bytes | None = None
        self._order: tuple[int, int] | None = None
        self._records: dict[AssignmentId, bytes] = {}
        self._assignment_of: dict[StartId, AssignmentId] = {}

    def accepted(self) -> tuple[int, int] | None:
        document = self._disk.state(NodeStoreState).facts.get("document")
        if document != self._document and document is not None:
            self._document = document
            self._order = decode(DesiredState, decode(SignedDocument, document).payload).order
        return self._order

    def assignments(self) -> dict[StartId, AssignmentId]:
        for assignment, value in self._disk.state(NodeStoreState).replicas.items():
            if self._records.get(assignment) != value:
                self._records[assignment] = value
                start = decode(ReplicaRecord, value).start
                if start is not None:
                    self._assignment_of[start] = assignment
        return self._assignment_of
