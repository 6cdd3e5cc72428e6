"""The tasks of one workload: the gateway's call, and its cancellation."""

import trio

from lunanexa_adapters.websocket.answers import INTERNAL
from lunanexa_adapters.websocket.flow import Flow
from lunanexa_adapters.websocket.services import Services, fault_of
from lunanexa_core.contract.frames import JsonObject
from lunanexa_core.ids import WorkloadId
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_ports.errors import PortError
from lunanexa_ports.gateway import InferenceCall, WorkloadCall


async def run_workload(services: Services, flow: Flow, call: WorkloadCall | InferenceCall) -> None:
    """Runs it to its end, and keeps a resumable one for a while after that."""
    try:
        with flow.scope:
            fault = await fault_of(lambda: services.gateway.submit(call, flow))
            if fault is not None:
                services.reporter.fault("workload_failed", flow.request, fault)
                flow.refuse(INTERNAL)
        wanted = flow.log.kept and (flow.ended or flow.cancelling)
        if flow.workload is None or not flow.cancelling:
            flow.cancelled(None)
        with flow.keeping:
            flow.keeping.deadline = trio.current_time() + services.settings.resume_ms / 1000
            if wanted:
                await trio.sleep_forever()
    finally:
        services.forget(flow)


async def run_outlasting(services: Services, flow: Flow, call: WorkloadCall | InferenceCall) -> None:
    """The same where no connection's guard is around it."""
    fault = await fault_of(lambda: run_workload(services, flow, call))
    if fault is not None:
        services.reporter.fault("workload_failed", flow.request, fault)


async def cancel_accepted(services: Services, flow: Flow, workload: WorkloadId, api_key: str) -> None:
    """Through the kernel, so that ``cancelled`` can carry the receipt."""
    receipt: JsonObject | None = None
    try:
        found = await services.workloads.cancel(api_key, workload)
    except PortError:  # Who can't be told a receipt can still be let go.
        found = None
    if isinstance(found, Refusal) and found.outcome is Outcome.INVALID_API_KEY:
        flow.refuse(found)
    elif isinstance(found, dict) and found.get("receipt") is not None:
        receipt = found
    flow.cancelled(receipt)
    flow.scope.cancel(reason="cancelled by its caller")
