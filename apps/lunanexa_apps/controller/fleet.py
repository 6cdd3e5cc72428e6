"""The fleet as operators see and direct it: nodes and deployments, one by one."""

from lunanexa_apps.codec import unstructure
from lunanexa_apps.controller.authority import find_operator
from lunanexa_apps.controller.fleet_documents import field_changes, node_document, node_page
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_apps.controller.status import deployment_status
from lunanexa_apps.controller.unreadable import read_document
from lunanexa_core.canonical import JsonValue
from lunanexa_core.commands import Command, ScaleDeployment, SetDirective
from lunanexa_core.contract.fleet import DirectiveRequest, ScaleRequest
from lunanexa_core.deployment import Deployment, DeploymentSpec
from lunanexa_core.ids import DeploymentId, NodeId
from lunanexa_core.journal_query import PAGE_ROWS_MAX
from lunanexa_core.kernel.decide import Answer
from lunanexa_core.keys import ApiKey, Role
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.placement.preview import preview
from lunanexa_ports.errors import PortUnavailable
from lunanexa_ports.fleet import FleetPlane


class KernelFleet(FleetPlane):
    """Reads the kernel's committed state, and turns writes into commands."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel

    async def nodes(self, token: str | None, limit: int, cursor: str | None) -> JsonValue | Refusal:
        operator = self._reader(token)
        if isinstance(operator, Refusal):
            return operator
        if not 1 <= limit <= PAGE_ROWS_MAX:
            return Refusal(
                outcome=Outcome.INVALID_REQUEST, message=f"limit must be 1 to {PAGE_ROWS_MAX}.", param="limit"
            )
        return node_page(self._kernel, limit, cursor)

    async def node(self, token: str | None, name: str) -> JsonValue | Refusal:
        operator = self._reader(token)
        return operator if isinstance(operator, Refusal) else node_document(self._kernel, NodeId(name))

    async def set_directive(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        asked = read_document(DirectiveRequest, document)
        if isinstance(asked, Refusal):
            return asked
        command = SetDirective(
            node=NodeId(name),
            directive=asked.directive,
            reason=asked.reason or None,
            within_ms=asked.within_ms,
            if_match=if_match,
        )
        answer = await self._ask(command, operator)
        return answer if isinstance(answer, Refusal) else node_document(self._kernel, NodeId(name))

    async def deployment(self, token: str | None, name: str) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR, Role.AUDITOR)
        if isinstance(operator, Refusal):
            return operator
        found = self._kernel.state.deployments.get(DeploymentId(name))
        if found is None:
            return Refusal(outcome=Outcome.NOT_FOUND, message=f"There is no deployment {name!r}.", param="deployment")
        return self._deployment(found)

    async def plan_deployment(self, token: str | None, document: JsonValue) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        spec = read_document(DeploymentSpec, document)
        if isinstance(spec, Refusal):
            return spec
        kernel = self._kernel
        found = preview(kernel.state, kernel.observed, kernel.policy, spec, kernel.now())
        if isinstance(found, Refusal):
            return found
        current = kernel.state.deployments.get(spec.deployment)
        fields = field_changes(None if current is None else unstructure(current.spec), unstructure(spec))
        plan = unstructure(found)
        assert isinstance(plan, dict)
        return {**plan, "fields": fields}

    async def scale_deployment(
        self, token: str | None, name: str, document: JsonValue, if_match: int | None
    ) -> JsonValue | Refusal:
        operator = find_operator(self._kernel, token, Role.OPERATOR)
        if isinstance(operator, Refusal):
            return operator
        asked = read_document(ScaleRequest, document)
        if isinstance(asked, Refusal):
            return asked
        command = ScaleDeployment(deployment=DeploymentId(name), replicas=asked.replicas, if_match=if_match)
        answer = await self._ask(command, operator)
        if isinstance(answer, Refusal):
            return answer
        assert isinstance(answer, Deployment), answer
        return self._deployment(answer)

    def _reader(self, token: str | None) -> ApiKey | Refusal:
        return find_operator(self._kernel, token, Role.OPERATOR, Role.MONITOR, Role.AUDITOR, standby=True)

    def _deployment(self, deployment: Deployment) -> JsonValue:
        return {
            "spec": unstructure(deployment.spec),
            "generation": deployment.generation,
            "status": deployment_status(self._kernel, deployment),
        }

    async def _ask(self, command: Command, operator: ApiKey) -> Answer:
        try:
            return await self._kernel.ask(command, operator.key)
        except PortUnavailable:
            return Refusal(outcome=Outcome.STORE_UNAVAILABLE, message="The controller is ending.")
