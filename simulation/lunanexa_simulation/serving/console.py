"""The fault console: how the world stands, and what shall befall it. It takes no key: whoever reaches it may play."""

import json
from typing import Final

from lunanexa_adapters.asgi.exchange import Exchange
from lunanexa_apps.codec import encode
from lunanexa_core.outcomes import Refusal
from lunanexa_simulation.serving.answers import Problem, tell
from lunanexa_simulation.serving.board import Fault, FaultBoard
from lunanexa_simulation.serving.feed import Feed
from lunanexa_simulation.serving.kinds import FAULTS, read_wish
from lunanexa_simulation.serving.status import Access, fault_status, faults_status, serving_status
from lunanexa_simulation.serving.watch import Watch
from lunanexa_simulation.world import World

PATH: Final = "/sim"
FAULTS_PATH: Final = "/sim/faults"
BODY_BYTES_MAX: Final = 16 * 1024
_ID_DIGITS_MAX: Final = 9
_TOO_MANY: Final = Problem(status=503, code="no_capacity", message="Too many listen already.", retry=True)


class Console:
    """Of one world."""

    def __init__(self, world: World, access: Access, board: FaultBoard, watch: Watch, feed: Feed) -> None:
        self._world = world
        self._access = access
        self._board = board
        self._watch = watch
        self._feed = feed

    async def answer(self, exchange: Exchange) -> None:
        """One request."""
        path = exchange.path.rstrip("/")
        if path.startswith(FAULTS_PATH + "/"):
            if await _is_one_of(exchange, "DELETE"):
                await self._heal(exchange, path.removeprefix(FAULTS_PATH + "/"))
            return
        match path:
            case "/sim":
                if await _is_one_of(exchange, "GET"):
                    await self._show_world(exchange)
            case "/sim/events":
                if await _is_one_of(exchange, "GET"):
                    await exchange.run(lambda: self._tell_events(exchange))
            case "/sim/faults" if exchange.method == "POST":
                await self._begin(exchange)
            case "/sim/faults":
                if await _is_one_of(exchange, "GET", "POST"):
                    await self._show_faults(exchange)
            case _:
                places = f"{PATH}, {FAULTS_PATH}, {FAULTS_PATH}/ID and {PATH}/events"
                await tell(exchange, Problem(status=404, code="not_found", message=f"There are {places}."))

    async def _show_world(self, exchange: Exchange) -> None:
        await _send(exchange, 200, encode(serving_status(self._world, self._access, self._board, self._watch)))

    async def _show_faults(self, exchange: Exchange) -> None:
        await _send(exchange, 200, encode(faults_status(self._board, FAULTS)))

    async def _begin(self, exchange: Exchange) -> None:
        body = await exchange.body(BODY_BYTES_MAX)
        if isinstance(body, Refusal):
            await exchange.refuse_unread(body)
            return
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):  # not UTF-8, not JSON, too deep
            document = None
        wish = read_wish(document, self._world.plan)
        await self._tell(exchange, 201, wish if isinstance(wish, Problem) else self._board.begin(wish))

    async def _heal(self, exchange: Exchange, number: str) -> None:
        if not (number.isascii() and number.isdigit() and len(number) <= _ID_DIGITS_MAX):
            message = f"The id of a fault is its number, such as {FAULTS_PATH}/1."
            await tell(exchange, Problem(status=400, code="invalid_request", message=message, param="id"))
            return
        await self._tell(exchange, 202, self._board.heal(int(number)))

    async def _tell(self, exchange: Exchange, status: int, fault: Fault | Problem) -> None:
        if isinstance(fault, Problem):
            await tell(exchange, fault)
        else:
            await _send(exchange, status, encode(fault_status(fault)))

    async def _tell_events(self, exchange: Exchange) -> None:
        with self._feed.listening() as listener:
            if listener is None:
                await tell(exchange, _TOO_MANY)
                return
            await exchange.start(200, [(b"content-type", b"text/event-stream")])
            if exchange.method == "HEAD":
                await exchange.send_body(b"", more=False)
                return
            await exchange.send_body(b": the trace, as it is written\n\n", more=True)
            async for event in listener.events():
                await exchange.send_body(event, more=True)


async def _is_one_of(exchange: Exchange, *methods: str) -> bool:
    """Whether it has one of these methods; it is refused else."""
    if exchange.method in methods or (exchange.method == "HEAD" and "GET" in methods):
        return True
    message = f"Allowed here: {', '.join(methods)}."
    await tell(exchange, Problem(status=405, code="method_not_allowed", message=message))
    return False


async def _send(exchange: Exchange, status: int, document: bytes) -> None:
    text = json.dumps(json.loads(document), indent=2).encode() + b"\n"
    await exchange.send_whole(status, b"application/json", text)
