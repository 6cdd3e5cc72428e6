"""``lunanexa-sim serve``: the world on real time behind a real front, with a fault console."""

import signal
from collections.abc import AsyncIterator, Callable
from typing import Final

import click
import trio

from lunanexa_apps.setting_kinds import Address, HostPort, NotOfThisKind
from lunanexa_simulation.cli.live import real_time_board
from lunanexa_simulation.cli.told import happened_lines
from lunanexa_simulation.cli.tools import Tools, json_option, seed_option, tell
from lunanexa_simulation.documents import BROKEN, ServeDocument
from lunanexa_simulation.results import ended, invariants_of
from lunanexa_simulation.serving.real_time import RealTime
from lunanexa_simulation.serving.session import Board, ServeOrder, ServeResult, Session
from lunanexa_simulation.serving.status import Access
from lunanexa_simulation.verdicts import Verdict
from lunanexa_simulation.world_plan import NODES_MAX, WorldPlan

CONTROLLERS_MAX: Final = 3
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class _Address(click.ParamType[HostPort]):
    name = "HOST:PORT"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> HostPort:
        try:
            return Address().from_text(str(value), "")
        except NotOfThisKind:
            self.fail(f"{value!r} is no HOST:PORT such as 127.0.0.1:8700; port 0 takes a free one", param, ctx)


@click.command("serve", short_help="Serve a simulated fleet on real time, with faults to order.")
@click.option(
    "--nodes", type=click.IntRange(1, NODES_MAX), default=4, show_default=True, help="Machines, each with an engine."
)
@click.option(
    "--controllers",
    type=click.IntRange(1, CONTROLLERS_MAX),
    default=1,
    show_default=True,
    help="Of which one leads.",
)
@seed_option
@click.option(
    "--listen",
    type=_Address(),
    default="127.0.0.1:8700",
    show_default=True,
    metavar="HOST:PORT",
    help="Where clients and the console are answered.",
)
@click.option("--for-s", type=click.FloatRange(min=0), metavar="S", help="Stop by itself after so many seconds.")
@json_option
@click.pass_obj
def serve_command(
    tools: Tools,
    nodes: int,
    controllers: int,
    seed: int,
    listen: HostPort,
    for_s: float | None,
    json_path: str | None,
) -> int:
    """Serve a simulated fleet on real time, for clients of yours, and let faults befall it.

    It speaks HTTP and WebSocket as a controller does; under /sim is the fault console. The seed decides its secrets,
    its latencies and what a mishap does; when you do what is yours, so that no two sessions are the same.
    Ctrl-C stops it in order, a second Ctrl-C at once.
    """
    order = ServeOrder(seed=seed, nodes=nodes, controllers=controllers, for_s=for_s)
    commit, serve = tools.commit(), tools.serve()
    time = RealTime(serve.clock)

    async def session() -> ServeResult | None:
        try:
            listening = await serve.listen(listen)
        except OSError as error:
            raise click.UsageError(f"--listen {listen}: {error.strerror or error}") from None
        with real_time_board(f"serve seed {seed}", quiet=False) as board:
            return await _obeying(Session(order, time, listening, board, _announcing(board)))

    result = tools.loop(session, clock=time)
    if result is None:
        raise click.Abort
    document = _document(order, result, commit)
    tell(document, json_path, lambda: _lines(document))
    return document.exit_code


async def _obeying(session: Session) -> ServeResult | None:
    """Nothing where it was told twice to stop."""
    result: ServeResult | None = None
    with trio.open_signal_receiver(*_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_obey, signals, session, nursery.cancel_scope)
            result = await session.run()
            nursery.cancel_scope.cancel("it has stopped")
    return result


async def _obey(signals: AsyncIterator[int], session: Session, everything: trio.CancelScope) -> None:
    told = False
    async for _ in signals:
        if told:
            everything.cancel("a second signal")
            return
        told = True
        session.stop()


def _announcing(board: Board) -> Callable[[Access, WorldPlan], None]:
    def announce(access: Access, plan: WorldPlan) -> None:
        board.say("\n".join(_banner(access, plan)))

    return announce


def _banner(access: Access, plan: WorldPlan) -> list[str]:
    """What somebody needs who wants to use it: lines to paste."""
    origin = access.base_url.removesuffix("/v1")
    many = f"{_counted(plan.nodes, 'node')}, {_counted(plan.controllers, 'controller')}"
    return [
        f"a simulated fleet serves: {many}",
        "it says nothing of accelerator speed; key and token come from the seed",
        f"base URL        {access.base_url}",
        f"API key         {access.api_key}",
        f"operator token  {access.operator_token}",
        f"console         {origin}/sim",
        "",
        "with curl:",
        f"curl -N {access.base_url}/chat/completions \\",
        f"  -H 'authorization: Bearer {access.api_key}' \\",
        "  -H 'content-type: application/json' \\",
        f'  -d \'{{"model": "{access.model}", "stream": true,',
        '       "messages": [{"role": "user", "content": "Tell me of the sea"}]}\'',
        "with openai for Python:",
        "from openai import OpenAI",
        f'key = "{access.api_key}"',
        f'client = OpenAI(base_url="{access.base_url}", api_key=key)',
        'hello = [{"role": "user", "content": "Hello"}]',
        f'answer = client.chat.completions.create(model="{access.model}", messages=hello)',
        "print(answer.choices[0].message.content)",
        "and let something befall it:",
        f"curl {origin}/sim/faults \\",
        """  -d '{"kind": "agent-down", "target": 1, "for_ms": 5000}'""",
        f"curl {origin}/sim/faults      # all kinds, and what is in force",
        f"curl -N {origin}/sim/events   # what happens, line by line",
        "",
        "Ctrl-C stops.",
    ]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _document(order: ServeOrder, result: ServeResult, commit: str | None) -> ServeDocument:
    broken = {*result.broken, *(() if result.problem is None else (result.problem.partition(": ")[0],))}
    return ServeDocument(
        **ended(order.seed, commit, result),
        nodes=order.nodes,
        controllers=order.controllers,
        served_ms=result.served_ms,
        quiescent_instants=result.instants,
        invariants=invariants_of(result.asked, broken),
        trace_tail=() if result.verdict is Verdict.HELD else result.tail,
    )


def _lines(document: ServeDocument) -> list[str]:
    broken = [one.name for one in document.invariants if one.verdict == BROKEN]
    asked = sum(one.times_asked for one in document.invariants)
    lines = [
        f"serve seed {document.seed}: {document.verdict}, {document.served_ms / 1_000:.1f} s, "
        f"{len(document.invariants)} invariants asked {asked} times at {document.quiescent_instants} instants, "
        f"{', '.join(broken) or 'none'} broken",
        *happened_lines(document.happened),
    ]
    if document.problem is not None:
        lines += [f"seed {document.seed}, commit {document.commit or 'unknown'}", f"broken: {document.problem}"]
        lines += [*(document.detail or "").splitlines(), "the end of the trace:", *document.trace_tail]
    return lines
