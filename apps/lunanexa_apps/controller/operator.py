"""The operator plane: reads the kernel's committed state, and turns writes into commands."""

from lunanexa_apps.codec import CodecError, structure, unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.issuing import ClusterKeys
from lunanexa_apps.controller.journal import read_store
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.ledger import receipts_page
from lunanexa_apps.controller.status import receipt_document, status_document
from lunanexa_apps.controller.unreadable import unreadable
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import ApplyDeployment, BeginDrain, RemoveDeployment
from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.ids import DeploymentId
from lunanexa_core.journal_query import PAGE_ROWS_MAX, ReceiptQuery
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.operator import Health, OperatorPlane


class KernelOperator(OperatorPlane, Health):
    """Operators' face of the kernel."""

    def __init__(self, kernel: Kernel, version: str, keys: ClusterKeys | None = None) -> None:
        """``keys``: whether they can be used is told too."""
        self._kernel = kernel
        self._version = version
        self._keys = keys

    def ready(self) -> tuple[bool, tuple[str, ...]]:
        blockers = []
        if not self._kernel.store_ok or (self._kernel.leading and not self._kernel.may_write):
            blockers.append("store_unavailable")
        elif not self._kernel.leading:
            blockers.append("not_leader")
        elif self._kernel.state.recovery is not None:
            blockers.append("recovering")
        if self._kernel.observed.draining:
            blockers.append("draining")
        return not blockers, tuple(blockers)

    async def authorise(self, token: str | None) -> Refusal | None:
        operator = self._operator(token, Role.OPERATOR, Role.MONITOR, Role.AUDITOR, standby=True)
        return operator if isinstance(operator, Refusal) else None

    def warnings(self) -> tuple[str, ...]:
        found = ("lost_tail_accepted",) if self._kernel.lost_tail_accepted else ()
        unusable = self._keys is not None and self._keys.problem is not None
        return (*found, "cluster_keys_unusable") if unusable else found

    def as_of(self) -> int | None:
        return None if self._kernel.leading else self._kernel.head.sequence

    async def status(self, token: str | None) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR, Role.MONITOR, Role.AUDITOR, standby=True)
        return operator if isinstance(operator, Refusal) else status_document(self._kernel, self._version)

    async def deployments(self, token: str | None) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        return {"data": [unstructure(deployment) for _, deployment in sorted(self._kernel.state.deployments.items())]}

    async def apply_deployment(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        if not isinstance(document, dict):
            return Refusal(outcome=Outcome.INVALID_REQUEST, message="The body must be a JSON object.")
        if document.get("deployment", name) != name:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST, message="The body names another deployment.", param="deployment"
            )
        try:
            spec = structure(DeploymentSpec, {**document, "deployment": name}, closed=True)
        except CodecError as error:
            return unreadable(error)
        answer = await self._ask(ApplyDeployment(spec=spec, if_match=if_match), operator)
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, Deployment)
        return {"deployment": answer.spec.deployment, "generation": answer.generation}

    async def remove_deployment(self, token: str | None, name: str) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        answer = await self._ask(RemoveDeployment(DeploymentId(name)), operator)
        return answer if isinstance(answer, Refusal) else {"deployment": name, "removed": True}

    async def drain(self, token: str | None) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        if not self._kernel.observed.draining:
            answer = await self._ask(BeginDrain(), operator)
            if isinstance(answer, Refusal):
                return answer
        return {"draining": True, "in_flight": self._kernel.relayed}

    async def receipts(self, token: str | None, query: ReceiptQuery) -> JsonValue | Refusal:
        operator = self._operator(token, Role.OPERATOR, Role.AUDITOR, standby=True)
        if isinstance(operator, Refusal):
            return operator
        if not 1 <= query.limit <= PAGE_ROWS_MAX:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST, message=f"limit must be 1 to {PAGE_ROWS_MAX}.", param="limit"
            )
        page = await read_store(receipts_page(self._kernel, query))
        if isinstance(page, Refusal):
            return page
        found, cursor = page
        return {
            "data": [{**receipt_document(one.receipt), "sequence": one.place.sequence} for one in found],
            "next_cursor": None if cursor is None else str(cursor),
        }

    def _operator(self, token: str | None, *roles: Role, standby: bool = False) -> ApiKey | Refusal:
        return find_operator(self._kernel, token, *roles, standby=standby)

    async def _ask(self, command: ApplyDeployment | RemoveDeployment | BeginDrain, operator: ApiKey) -> object:
        try:
            return await self._kernel.ask(command, operator.key)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")
