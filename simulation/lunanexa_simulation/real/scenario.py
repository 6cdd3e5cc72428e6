"""One run: a fleet, its callers, the strikes, and what must hold under them and afterwards."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import trio

from lunanexa_apps.installation import STORE
from lunanexa_simulation.client import Ending, Oracle
from lunanexa_simulation.real.after import books_faults, leak_fault, shown_fault
from lunanexa_simulation.real.books import Told, read_books
from lunanexa_simulation.real.fleet import Fleet, starts_of
from lunanexa_simulation.real.orders import node_name
from lunanexa_simulation.real.plan import Blow, Part, Strike
from lunanexa_simulation.real.promises import NO_CRASH, Promises
from lunanexa_simulation.real.tools import RealTools
from lunanexa_simulation.real.traffic import CALLERS, Traffic, prompt
from lunanexa_simulation.real.view import at_rest, lacking_nodes, lacking_replicas, state_of

RECOVERY_S: Final = 45.0
LOST_S: Final = 30.0
"""A node's lease is ten seconds."""
REST_S: Final = 45.0
"""A dead gateway's session lapses, then what it had open is settled."""
SERVED_LEAST: Final = 20
RECOVERED: Final = '"replica_recovered"'


class Scenario:
    """Plays the strikes of one run. ``involved``: the processes that the last one was for."""

    def __init__(
        self, fleet: Fleet, traffic: Traffic, promises: Promises, strikes: Sequence[Strike], oracle: Oracle
    ) -> None:
        self.involved: list[str] = ["controller"]
        self.doing = "starting"
        """For who looks on."""
        self._fleet = fleet
        self._traffic = traffic
        self._promises = promises
        self._strikes = strikes
        self._oracle = oracle
        self._told: list[Told] = []

    async def play(self, tools: RealTools, say: Callable[[str], None]) -> None:
        """All of it. Raises what broke first."""
        await self._fleet.begin()
        say(f"controller, {len(self._fleet.agents)} agents and their engines serve at {self._fleet.places.front}")
        async with trio.open_nursery() as watching:
            watching.start_soon(self._fleet.watch)
            async with trio.open_nursery() as callers:
                for number in range(CALLERS):
                    callers.start_soon(self._traffic.call, number, self._fleet.client(f"caller {number}"))
                for strike in self._strikes:
                    self.doing = f"{strike.number} of {len(self._strikes)}: {strike}"
                    began_ms = self._promises.now_ms
                    await self._strike(strike)
                    say(f"{self.doing}: all is well again after {(self._promises.now_ms - began_ms) / 1_000:.1f} s")
                self.involved, self.doing = ["controller"], "the callers come to an end"
                served = f"callers get {SERVED_LEAST} answers"
                await self._promises.until(served, self._too_few_answers, within_s=RECOVERY_S)
                self._traffic.over = True
            for held in (
                "every caller comes to an end",
                "each answer is the engine's or its beginning, each refusal one that may be told",
                "a node has one engine at most, at all times",
                NO_CRASH,
            ):
                self._promises.check(held, None)
            watching.cancel_scope.cancel("nobody calls any more")
        await self._end(tools, say)

    async def _strike(self, strike: Strike) -> None:
        fleet, promises = self._fleet, self._promises
        self.involved = [str(target) for target in strike.targets if target.part is not Part.ENGINE]
        self.involved += [f"agent {node}" for node in strike.hits(Part.ENGINE)]
        await promises.until("callers ask", self._nobody_asks, within_s=RECOVERY_S, often=True)
        await trio.sleep(strike.before_ms / 1_000)
        before, recovered = await self._starts(), self._recovered()
        await self._note_state()
        self._traffic.happened[f"strike {strike.blow.value}"] += 1
        match strike.blow:
            case Blow.KILL:
                for target in strike.targets:
                    await fleet.kill(target)
                await trio.sleep(strike.down_ms / 1_000)
                async with trio.open_nursery() as nursery:
                    for target in strike.targets:
                        nursery.start_soon(fleet.start, target)
            case Blow.PAUSE:
                await self._pause(strike)
        lacking = partial(self._lacking_after, strike, before, recovered)
        await promises.until(f"{self.doing}: all is routable again", lacking, within_s=RECOVERY_S)
        killed = {node_name(node) for node in strike.hits(Part.ENGINE)}
        after = await self._starts()
        other = {node: (start, after[node]) for node, start in before.items() if node not in killed}
        lost = {node: pair for node, pair in other.items() if pair[0] != pair[1]}
        promises.check(f"{self.doing}: other engines are the same start, the same process", lost)
        await promises.until(f"{self.doing}: a new call is served", self._not_served, within_s=RECOVERY_S)

    async def _pause(self, strike: Strike) -> None:
        for target in strike.targets:
            self._fleet.pause(target)
        names = [node_name(target.node) for target in strike.targets]
        try:
            await self._promises.until(
                f"{self.doing}: it is held for lost", partial(self._heard, names), within_s=LOST_S
            )
        finally:
            for target in strike.targets:
                self._fleet.resume(target)

    async def _end(self, tools: RealTools, say: Callable[[str], None]) -> None:
        self.doing = "the end"
        promises, fleet = self._promises, self._fleet
        await promises.until("all counters come to rest", self._busy, within_s=REST_S)
        await self._note_state()
        status = await self._status()
        promises.check("no secret stands in a command line", shown_fault(fleet))
        await fleet.end()
        say("all processes have ended")
        async with tools.open_journal(fleet.places.controller / STORE) as journal:
            books = await read_books(journal, self._told)
        kills: dict[str, int] = dict.fromkeys(fleet.names, 0)
        for strike in self._strikes:
            for node in strike.hits(Part.ENGINE):
                kills[node_name(node)] += 1
        expected = {node: count + 1 for node, count in kills.items()}
        faults = books_faults(books, self._told, self._traffic.whole, expected, status)
        faults["no secret stands in a log, a store or another file"] = leak_fault(fleet, books)
        promises.check_all(faults)

    # --- what is lacking ---

    async def _lacking_after(
        self, strike: Strike, before: Mapping[str, object], recovered: Sequence[int]
    ) -> str | None:
        status = await self._fleet.status()
        if status is None:
            return "the controller does not lead"
        silent = [node for node in strike.hits(Part.AGENT) if strike.blow is Blow.KILL]
        silent = [node for node in silent if self._recovered()[node - 1] == recovered[node - 1]]
        if silent:
            return f"agents {silent} have not found their engines"
        lacking = lacking_nodes(status, self._fleet.names) or lacking_replicas(status, self._fleet.names)
        if lacking is not None:
            return lacking
        starts = starts_of(status)
        old = [name for node in strike.hits(Part.ENGINE) if starts[name := node_name(node)] == before[name]]
        return f"engines of {old} are the ones that were killed" if old else None

    async def _heard(self, names: Sequence[str]) -> str | None:
        status = await self._fleet.status()
        states = {} if status is None else {name: state_of(status, name) for name in names}
        return None if set(states.values()) == {"lost"} else f"nodes are {states}"

    async def _nobody_asks(self) -> str | None:
        return None if self._traffic.asking else "nobody asks"

    async def _too_few_answers(self) -> str | None:
        count = len(self._traffic.whole)
        return None if count >= SERVED_LEAST else f"{count} were given"

    async def _not_served(self) -> str | None:
        body = prompt(self.doing, stream=False)
        answer = await self._fleet.client("prober").chat(body, deadline_ms=round(RECOVERY_S * 1_000))
        if answer.ending is not Ending.WHOLE:
            return f"the answer was {answer.ending.value} {answer.error or ''}"
        self._promises.check("what came is the engine's answer", self._oracle.fault(body, answer), often=True)
        self._traffic.whole.append(answer)
        return None

    async def _busy(self) -> str | None:
        status, requests = await self._fleet.status(), await self._fleet.ask("/admin/v1/requests?limit=1")
        return "the controller does not answer" if status is None or requests is None else at_rest(status, requests)

    # --- what is seen ---

    async def _starts(self) -> dict[str, tuple[str | None, int | None]]:
        return starts_of(await self._status())

    async def _status(self) -> Any:
        """The status document, from a controller that has no reason not to give it."""
        found: list[Any] = []

        async def lacking() -> str | None:
            found.append(await self._fleet.status())
            return None if found[-1] is not None else "it gives no status"

        await self._promises.until(f"{self.doing}: the controller leads", lacking, within_s=RECOVERY_S, often=True)
        return found[-1]

    def _recovered(self) -> list[int]:
        return [agent.log.read_text(errors="replace").count(RECOVERED) for agent in self._fleet.agents]

    async def _note_state(self) -> None:
        """What the controller says its state is now: nothing of it may be lost afterwards."""
        state = await self._fleet.ask("/admin/v1/journal/state")
        if state is not None:
            self._told.append(Told(state["sequence"], state["digest"]))
