"""``lunanexa up``: starts controller and node agent, deploys, keeps both running, and ends them in order.

One interrupt leaves the serving scope and enters the stopping one; a second leaves that too. Supervision
lives in a nursery around both, so that a process that crashes while others stop is nobody's surprise.
"""

import signal
from collections.abc import AsyncIterable
from typing import Final

import attrs
import trio

from lunanexa_apps.installation import Installation
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.choice import Chosen
from lunanexa_apps.up.deploy import (
    deploy,
    drain,
    planes_of,
    read_status,
    wait_for_controller,
    wait_for_service,
)
from lunanexa_apps.up.node_token import provide_token
from lunanexa_apps.up.orders import reachable
from lunanexa_apps.up.ready_file import ReadyFacts, ReadyFile
from lunanexa_apps.up.screen import Announcement, Failure, Screen
from lunanexa_apps.up.status_view import engine_pid, replicas_of
from lunanexa_apps.up.supervisor import ChildEnded, Supervised
from lunanexa_ports.children import ChildOrder, Children
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.http_client import HttpClient
from lunanexa_ports.private_files import PrivateFiles

WATCH_S: Final = 1.0
DRAIN_POLL_S: Final = 0.5
DRAIN_LIMIT_S: Final = 60.0
NODE_PATIENCE_MS: Final = 30_000
"""The agent waits for its engines, which have ten seconds each by default."""
CONTROLLER_PATIENCE_MS: Final = 15_000
LAST_WORD_S: Final = 5.0
"""After a second interrupt: so long the node agent may still take its engines down."""
REPEAT_S: Final = 0.3
"""SIGTERMs closer together are one: timeout(1) signals a process and then its whole group. Ctrl-C comes
from a hand, and twice means twice."""
FAILED_STARTS_MAX: Final = 3
DELIBERATE: Final = range(64, 79)
"""Exit statuses of sysexits: the child knows that it can't run, and says why itself."""
INTERRUPTED: Final = 130


@attrs.frozen(kw_only=True)
class UpPlan:
    """All that was decided before anything is started."""

    data_dir: str
    installation: Installation
    listen: HostPort
    chosen: Chosen
    controller: ChildOrder
    node: ChildOrder

    @property
    def base_url(self) -> str:
        return f"http://{reachable(self.listen)}/v1"

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(choice.alias for choice in self.chosen.engines)


async def run_up(
    plan: UpPlan,
    *,
    files: PrivateFiles,
    children: Children,
    http: HttpClient,
    interrupts: AsyncIterable[int],
    screen: Screen,
    ready_file: ReadyFile | None,
) -> int:
    """Serves until an interrupt (each item of ``interrupts`` is one); returns the exit status. ``files`` are those of
    the data directory."""
    up = _Up(plan, files, children, http, screen, ready_file)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(up.heed, interrupts)
        code = await up.run(nursery)
        nursery.cancel_scope.cancel()
    return code


class _Up:
    def __init__(
        self,
        plan: UpPlan,
        files: PrivateFiles,
        children: Children,
        http: HttpClient,
        screen: Screen,
        ready_file: ReadyFile | None,
    ) -> None:
        self._plan = plan
        self._files = files
        self._screen = screen
        self._http = http
        self._controller = Supervised(plan.controller, children, self._on_end)
        self._node = Supervised(plan.node, children, self._on_end)
        self._ready = ready_file
        self._planes = planes_of(
            http,
            reachable(plan.listen),
            operator_token=plan.installation.operator_token,
            api_key=plan.installation.api_key,
        )
        self._serving = trio.CancelScope()
        self._stopping = trio.CancelScope()
        self._served = False
        self._failure: Failure | None = None

    async def heed(self, interrupts: AsyncIterable[int]) -> None:
        """Every interrupt ends the phase that is running."""
        last = float("-inf")
        async for number in interrupts:
            previous, last = last, trio.current_time()
            if number != signal.SIGINT and last - previous < REPEAT_S:
                continue
            if self._serving.cancel_called:
                self._stopping.cancel()
            self._serving.cancel()

    async def run(self, nursery: trio.Nursery) -> int:
        self._failure = self._remove_ready()
        if self._failure is None:
            with self._serving:
                await self._serve(nursery)
        self._serving.cancel()
        not_removed = self._remove_ready()
        with self._stopping:
            await self._stop()
        if self._stopping.cancelled_caught:
            await self._stop_at_once()
        self._screen.settled()
        failure = self._failure or not_removed
        if failure is not None:
            self._screen.failed(failure)
            return failure.exit_code
        return INTERRUPTED if self._stopping.cancelled_caught else 0

    async def _serve(self, nursery: trio.Nursery) -> None:
        """Returns only with a failure noted; serving goes on until it is cancelled."""
        try:
            self._screen.progress("starting the controller")
            await _start(nursery, self._controller)
            await wait_for_controller(self._planes)
            self._failure = await provide_token(self._files, self._planes, self._screen.progress)
            if self._failure is not None:
                return
            self._screen.progress("starting the node agent")
            await _start(nursery, self._node)
        except PortFault as error:
            self._failure = Failure(message=str(error), exit_code=70)
            return
        failure = await deploy(self._planes, self._plan.chosen.engines)
        if failure is None:
            failure = await self._until_served()
        if failure is not None:
            self._failure = failure
            return
        await self._watch()

    async def _until_served(self) -> Failure | None:
        result = await wait_for_service(self._planes, self._plan.chosen.engines, self._screen.progress)
        if isinstance(result, Failure):
            return result
        self._served = True
        # What was read before the first call could succeed may lack the process that serves it.
        status = await read_status(self._planes)
        first = self._plan.chosen.engines[0].deployment
        self._write_ready(engine_pid(result if status is None else replicas_of(status, first)))
        self._screen.settled()
        installation = self._plan.installation
        self._screen.serving(
            Announcement(
                base_url=self._plan.base_url,
                api_key=installation.api_key,
                api_key_file=installation.api_key_file,
                operator_token_file=installation.operator_token_file,
                models=self._plan.models,
                engine=self._plan.chosen.description,
                data_dir=self._plan.data_dir,
            )
        )
        return None

    async def _watch(self) -> None:
        while True:
            await trio.sleep(WATCH_S)
            status = await read_status(self._planes)
            if status is not None:
                first = self._plan.chosen.engines[0].deployment
                self._write_ready(engine_pid(replicas_of(status, first)))

    def _write_ready(self, engine: int | None) -> None:
        if self._ready is None:
            return
        installation = self._plan.installation
        facts = ReadyFacts(
            base_url=self._plan.base_url,
            api_key=installation.api_key,
            operator_token=installation.operator_token,
            model=self._plan.models[0],
            models=self._plan.models,
            pids={"controller": self._controller.pid, "node": self._node.pid, "engine": engine},
        )
        try:
            self._ready.write(facts)
        except PortError as error:
            self._failure = _no_ready_file(error)
            self._serving.cancel()

    def _remove_ready(self) -> Failure | None:
        try:
            if self._ready is not None:
                self._ready.remove()
        except PortError as error:
            return _no_ready_file(error)
        return None

    def _on_end(self, end: ChildEnded) -> None:
        deliberate = end.status is not None and end.status in DELIBERATE
        if not self._served and not self._serving.cancel_called and (deliberate or end.in_a_row >= FAILED_STARTS_MAX):
            self._failure = Failure(
                message=f"the {end.title} {end.reason}",
                hint="its own lines above say why; more of them with -v",
                exit_code=end.status if deliberate and end.status is not None else 1,
            )
            self._serving.cancel()
            return
        self._screen.child_ended(end)

    async def _stop(self) -> None:
        if self._served and self._failure is None:
            await self._drain()
        await self._stop_child(self._node, "the node agent and its engines", NODE_PATIENCE_MS)
        await self._http.aclose()
        await self._stop_child(self._controller, "the controller", CONTROLLER_PATIENCE_MS)

    async def _drain(self) -> None:
        self._screen.progress("draining")
        with trio.move_on_after(DRAIN_LIMIT_S):
            while True:
                in_flight = await drain(self._planes)
                if not in_flight:
                    return
                requests = "1 request" if in_flight == 1 else f"{in_flight} requests"
                self._screen.progress(f"draining: waiting for {requests} in flight (Ctrl-C again stops at once)")
                await trio.sleep(DRAIN_POLL_S)
        self._screen.note(f"draining took longer than {DRAIN_LIMIT_S:.0f} s: what is in flight is cut")

    async def _stop_child(self, child: Supervised, what: str, patience_ms: int) -> None:
        if not child.started:
            return
        self._screen.progress(f"stopping {what}")
        await child.stop(patience_ms=patience_ms)

    async def _stop_at_once(self) -> None:
        """The agent is hurried before it is killed: engines are in groups of their own, and only it knows them."""
        started = [child for child in (self._node, self._controller) if child.started]
        self._screen.progress("stopping at once")
        for child in started:
            child.hurry()
        with trio.move_on_after(LAST_WORD_S, shield=True):
            if self._node.started:
                await self._node.wait_gone()
        for child in started:
            child.kill()
        with trio.move_on_after(LAST_WORD_S, shield=True):
            for child in started:
                await child.wait_gone()


def _no_ready_file(error: PortError) -> Failure:
    return Failure(message=str(error), hint="check --ready-file", exit_code=73)


async def _start(nursery: trio.Nursery, child: Supervised) -> None:
    # Shielded: a start that is cancelled half way would leave a process that nobody supervises.
    with trio.CancelScope(shield=True):
        await nursery.start(child.run)
