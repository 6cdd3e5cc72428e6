"""Looks at a machine without a network. What is asked of every fleet is asked of it too, where that means something
without a controller; and what only such a machine has."""

from collections.abc import Mapping, Sequence

from lunanexa_apps.codec import decode, structure
from lunanexa_core.canonical import strict_json
from lunanexa_core.southbound.bundle import Bundle
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_core.southbound.outbox import OutboxReport, SignedReport
from lunanexa_simulation.checkers import Checkers
from lunanexa_simulation.engine_program import LOG_SECRET
from lunanexa_simulation.invariants.fleet import one_process_each
from lunanexa_simulation.invariants.secrets import no_secret_shown
from lunanexa_simulation.invariants.store import fences_never_fall
from lunanexa_simulation.node_store import NodeStoreState
from lunanexa_simulation.run import Run
from lunanexa_simulation.sight import Sight
from lunanexa_simulation.site import NODE, Site


class SiteEyes:
    """Asks its checkers at each quiescent instant, from where it is made."""

    def __init__(self, run: Run, site: Site) -> None:
        self._run = run
        self._site = site
        self._logs_read = 0
        self._reports: dict[int, bytes] = {}
        self._texts: list[tuple[str, str]] = []
        self.followed: Bundle | None = None
        """What was in force when it was looked at last."""
        self.sight = Sight(
            rows=(),
            secrets={"an engine's key": site.engine_secret, "an engine's log": LOG_SECRET},
            fences=self._fences,
            running=site.living,
            new_texts=self._new_texts,
        )
        of_every_fleet = (fences_never_fall, one_process_each)
        own = (self.bundles_follow, self.kept_then_counted, self.reports_are_its_own)
        self._checkers = Checkers(self.sight, invariants=(*of_every_fleet, *own, no_secret_shown), asked=run.asked)
        run.checks.append(self._checkers.look)

    def bundles_follow(self, _: Sight) -> str | None:
        """What is in force was signed by the authority, and follows what was in force before; only a baseline need
        not."""
        bundles = None if self._site.agent is None else self._site.agent.bundles
        if bundles is None or bundles.bundle is None or bundles.bundle == self.followed:
            return None
        before, bundle = self.followed, bundles.bundle
        self.followed = bundle
        if bundles.digest is None or self._site.signed.get(bundles.digest) != bundle:
            return f"generation {bundle.generation} is in force, which the authority did not sign so"
        if before is not None and not bundle.baseline and bundle.predecessor != before.generation:
            return f"generation {bundle.generation} came after {before.generation}, not after {bundle.predecessor}"
        return None

    def kept_then_counted(self, _: Sight) -> str | None:
        """Of what is in force the store knows, and then the counter: neither a death nor a copy of the store takes the
        node back, nor shuts it out from what it had."""
        in_force = None if self._site.agent is None else self._site.agent.bundles.bundle
        if in_force is None:
            return None
        stored, counted = self._stored(), self._site.media.floor
        if in_force.generation <= counted <= stored:
            return None
        return f"generation {in_force.generation} is in force, the store has {stored} and the counter {counted}"

    def reports_are_its_own(self, _: Sight) -> str | None:
        """Each report in the outbox is signed by this node, under its number, of a bundle that the authority signed."""
        for number, report in self._site.media.reports.items():
            if self._reports.get(number) != report:
                self._reports[number] = report
                problem = self._problem_of(number, decode(SignedReport, report))
                if problem is not None:
                    return f"report {number} {problem}"
        return None

    def _problem_of(self, number: int, signed: SignedReport) -> str | None:
        # Why an engine ended is told by its last lines, which are meant for the operator alone.
        self._texts.append((f"report {number}", signed.payload.decode().replace(LOG_SECRET, "")))
        key = self._site.key
        document = SignedDocument(payload=signed.payload, key_id=signed.key_id, signature=signed.signature)
        if not self._site.verifier.verify(document, {key.key_id: key.public_key}):
            return "is not signed by the node"
        told = decode(OutboxReport, signed.payload)
        if (told.node, told.number) != (NODE, number):
            return f"says that it is number {told.number} of {told.node}"
        if told.bundle is not None and told.bundle not in self._site.signed:
            return "tells of a bundle that the authority did not sign"
        return None

    def _stored(self) -> int:
        """The generation that the node's store has."""
        kept = self._site.disk.state(NodeStoreState).facts.get("bundle")
        if kept is None:
            return 0
        document = structure(SignedDocument, strict_json(kept)["document"])
        return decode(Bundle, document.payload).generation

    def _fences(self) -> Mapping[str, tuple[int, int]]:
        fences = {f"the counter of {NODE}": (0, self._site.media.floor)}
        agent = self._site.agent
        if agent is not None and agent.bundles.bundle is not None:
            fences[NODE] = (0, agent.bundles.bundle.generation)
        return fences

    def _new_texts(self) -> Sequence[tuple[str, str]]:
        lines, texts = self._run.logs.since(self._logs_read), self._texts
        self._logs_read, self._texts = self._run.logs.written, []
        return [*(("a log line", line) for line in lines), *texts]
