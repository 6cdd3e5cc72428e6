"""Programs that are not the engine that was to answer, and what they say of themselves."""

import json
from typing import Final

import attrs
import trio

from lunanexa_core.drivers.specification import LOOPBACK, EngineAddress
from lunanexa_core.ids import StartId
from lunanexa_ports.asgi import AsgiApplication, Receive, Scope, Send
from lunanexa_simulation.http_client import SimulatedNetwork
from lunanexa_simulation.machine import STRANGER
from lunanexa_simulation.process import Program, SimulatedProcess
from lunanexa_simulation.world import SERVED_NAME

START: Final = "{start}"
"""Stands for the start that is expected there."""
ELSEWHERE: Final = EngineAddress("elsewhere", 8000)
"""Where redirects lead to."""


@attrs.frozen(kw_only=True)
class Pose:
    """What one says. ``names`` are its models; ``None``: nothing that can be read."""

    told: str
    ending: str
    """What its node says of its end."""
    health: int = 200
    models: int = 200
    names: tuple[str, ...] | None = (SERVED_NAME, START)
    stranger: bool = False
    """Whether it is no process of ours: it was at the port first, while the engine loaded."""


POSES: Final = (
    Pose(told="another model", names=("other", START), ending="wrong_identity"),
    Pose(told="another start", names=(SERVED_NAME, "start_of_another"), ending="wrong_identity"),
    Pose(told="no start", names=(SERVED_NAME,), ending="wrong_identity"),
    Pose(told="nothing that can be read", names=None, ending="start_timeout"),
    Pose(told="that it wants another key", models=401, ending="start_timeout"),
    Pose(told="that its models are elsewhere", models=307, ending="start_timeout"),
    Pose(told="that its health is elsewhere", health=307, ending="start_timeout"),
    Pose(told="another start, on its port", names=(SERVED_NAME, "other"), stranger=True, ending="wrong_identity"),
    Pose(told="that it wants another key, on its port", models=401, stranger=True, ending="exited"),
)


class Impostor(AsgiApplication):
    """Answers in a pose, and remembers what it was asked."""

    def __init__(self, pose: Pose, start: StartId) -> None:
        self.pose = pose
        self.start = start
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send, /) -> None:
        method, path, pose = scope["method"], scope["path"], self.pose
        self.asked.append((method, path))
        status, body = {"/health": (pose.health, b"{}"), "/v1/models": (pose.models, self._models())}.get(
            path, (200, b"{}")
        )
        headers = [(b"location", f"http://{ELSEWHERE.host}:{ELSEWHERE.port}{path}".encode())] if status == 307 else []
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _models(self) -> bytes:
        if self.pose.names is None:
            return b"<html>"
        names = [name.replace(START, self.start) for name in self.pose.names]
        return json.dumps({"object": "list", "data": [{"id": name} for name in names]}).encode()


class Impostors:
    """A program of which each start is another impostor, in the order of the poses, and then the engine itself."""

    def __init__(self, network: SimulatedNetwork, engine: Program) -> None:
        self.lives: list[Impostor] = []
        self._network = network
        self._engine = engine
        self._strangers: list[SimulatedProcess] = []

    async def program(self, process: SimulatedProcess) -> int:
        """What runs instead of the engine."""
        if len(self.lives) == len(POSES):
            return await self._engine(process)
        impostor = Impostor(POSES[len(self.lives)], process.start)
        self.lives.append(impostor)
        port = int(process.option("--port"))
        if not impostor.pose.stranger:
            await self._listen(process, port, impostor)
        stranger = SimulatedProcess(process.host, STRANGER, ("stranger",), {}, "stranger.log", None)
        process.host.run(stranger, lambda own: self._listen(own, port, impostor))
        await trio.sleep(3)
        return 1  # The address is in use.

    async def _listen(self, process: SimulatedProcess, port: int, app: AsgiApplication) -> int:
        with process.listening(port):
            self._network.listen(LOOPBACK, port, app)
            try:
                await trio.sleep_forever()
            finally:
                self._network.kill(LOOPBACK, port)
