"""How a world stands at one instant, for people: who leads, what each node runs, what is asked and who waits."""

from collections.abc import Iterator

from lunanexa_core.state import Node
from lunanexa_simulation.controller_host import ControllerHost
from lunanexa_simulation.disk import DiskFaults
from lunanexa_simulation.documents import StateDocument
from lunanexa_simulation.node_host import NodeHost
from lunanexa_simulation.site import Site
from lunanexa_simulation.world import World


def picture_of(world: World) -> tuple[StateDocument, ...]:
    """The whole world. It reads and changes nothing."""
    parts = (
        ("controllers", _controllers(world)),
        ("nodes", _nodes(world)),
        ("replicas", _replicas(world)),
        ("open requests", _requests(world)),
        ("queues", _queues(world)),
        ("trust", _trust(world)),
        ("network", iter(world.network.troubles())),
        ("the end of the trace", iter(world.run.trace.tail)),
    )
    return tuple(StateDocument(about=about, lines=tuple(lines)) for about, lines in parts)


def _controllers(world: World) -> Iterator[str]:
    for host in world.controllers:
        yield f"{host.host}: {standing(host)}"
    yield f"journal: {len(world.sight.rows)} rows{''.join(_of_disk(world.controllers[0].disk.faults))}"


def _of_disk(faults: DiskFaults) -> Iterator[str]:
    """What is not as on a perfect one."""
    if faults.unavailable:
        yield ", can't be reached"
    if faults.full:
        yield ", full"
    if faults.corrupt:
        yield ", corrupt"
    if faults.unknown_outcomes:
        yield f", {faults.unknown_outcomes} writes fail and are durable all the same"
    if faults.delay_ms:
        yield f", a sync takes {faults.delay_ms} ms"


def standing(host: ControllerHost) -> str:
    """What a controller is now."""
    if not host.up:
        return "down"
    kernel = host.kernel
    return f"leads in epoch {kernel.epoch}" if kernel.leading else "follows"


def _nodes(world: World) -> Iterator[str]:
    known = world.controller.kernel.state.nodes if world.controller.up else {}
    for host in world.nodes:
        yield f"{host.name}: {', '.join(_of_node(host, known.get(host.name)))}"


def _of_node(host: NodeHost, node: Node | None) -> Iterator[str]:
    yield "agent runs" if host.up else "no agent"
    if node is None:
        yield "unknown to the controller"
    else:
        yield f"{node.liveness.value}, {node.directive.value}, generation {node.generation}"
        count = len(node.certificates)
        yield "revoked" if node.revoked else f"{count} certificate{'' if count == 1 else 's'}"
    accepted = host.accepted()
    yield "no document" if accepted is None else f"follows epoch {accepted[0]}, generation {accepted[1]}"
    lease_ms = host.lease_left_ms() if host.up else None
    if lease_ms is None:
        yield "no lease"
    else:
        yield f"lease for {lease_ms} ms" if lease_ms >= 0 else f"no lease since {-lease_ms} ms"
    for assignment, start in host.running():
        yield f"runs {start} of {assignment}"


def _replicas(world: World) -> Iterator[str]:
    if world.controller.up:
        kernel = world.controller.kernel
        for name, assignment in sorted(kernel.state.assignments.items()):
            report = kernel.state.replicas.get(name)
            told = "not reported" if report is None else f"{report.state.value}, {report.start or 'no start'}"
            yield f"{name} of {assignment.deployment} on {assignment.node}: {told}"


def _requests(world: World) -> Iterator[str]:
    if world.controller.up:
        kernel = world.controller.kernel
        for workload in sorted(kernel.state.open):
            held = kernel.observed.held.get(workload)
            yield f"{workload}: {'waits' if held is None else f'at {held.start}'}"


def _queues(world: World) -> Iterator[str]:
    if world.controller.up:
        for deployment, queue in sorted(world.controller.kernel.observed.queues.items()):
            yield f"{deployment}: {len(queue)} wait"


def _trust(world: World) -> Iterator[str]:
    trust = world.controller.kernel.state.trust if world.controller.up else None
    if trust is not None:
        count = len(trust.authorities)
        yield f"version {trust.version}, {trust.stage.value}, {count} authorit{'y' if count == 1 else 'ies'}"


def picture_of_site(site: Site) -> tuple[StateDocument, ...]:
    """A machine without a network. It reads and changes nothing."""
    parts = (
        ("the agent", _of_agent(site)),
        ("engines", (f"{start} of {assignment}" for assignment, start in site.living())),
        ("media", _media(site)),
        ("the end of the trace", iter(site.run.trace.tail)),
    )
    return tuple(StateDocument(about=about, lines=tuple(lines)) for about, lines in parts)


def _of_agent(site: Site) -> Iterator[str]:
    if site.agent is None:
        yield "none runs, or it has not recovered"
        return
    bundle = site.agent.bundles.bundle
    yield "follows nothing" if bundle is None else f"follows generation {bundle.generation} of {bundle.cluster}"
    for report in site.agent.reports():
        yield f"{report.assignment}: {report.state.value}, {report.start or 'no start'}"
    for refused in site.agent.bundles.refused:
        yield f"refuses {refused.name}: {refused.refusal}"


def _media(site: Site) -> Iterator[str]:
    media = site.media
    yield f"in the inbox: {', '.join(sorted(media.bundles)) or 'nothing'}"
    yield f"taken: {len(media.taken)} blobs; the counter stands at {media.floor}"
    report = site.report()
    if report is None:
        yield "in the outbox: nothing"
    else:
        states = ", ".join(one.state.value for one in report.heartbeat.replicas) or "nothing"
        told = f"{report.number} says generation {report.heartbeat.generation}, {states}"
        yield f"in the outbox: {len(media.reports)} reports; {told}"
