"""What runs where, and who is sent there: grants, identity, processes, places, data listeners."""

from collections import Counter
from typing import Final

from lunanexa_core.ids import DeploymentId, StartId
from lunanexa_core.southbound.heartbeat import IdentityGrade
from lunanexa_simulation.sight import Sight

_NOTICED_MS: Final = 60
"""So late a lapse is noticed on a machine whose clock runs fast: its timers don't."""


def granted_newest_only(sight: Sight) -> str | None:
    """Only the newest start of an assignment is granted requests, and none whose node is lost or cordoned."""
    return sight.grants.finding


def routable_is_bound(sight: Sight) -> str | None:
    """No replica is routable whose identity is below ``bound``, but where a deployment allows declared ones."""
    if sight.kernel is None:
        return None
    for deployment_id, deployment in sight.kernel.state.deployments.items():
        enough = {IdentityGrade.BOUND, IdentityGrade.PROVEN}
        if deployment.spec.allow_declared:
            enough.add(IdentityGrade.DECLARED)
        if all(report.identity in enough for report in sight.kernel.state.replicas.values()):
            continue  # Whichever are routable.
        for report in sight.routable(sight.kernel, deployment_id):
            if report.identity not in enough:
                return f"{report.start} is routable with identity {report.identity.value}"
    return None


def one_process_each(sight: Sight) -> str | None:
    """An assignment has one live engine process at most: no start precedes the proof of absence."""
    if len(dict(sight.living)) < len(sight.living):
        count = Counter(assignment for assignment, _ in sight.living)
        twice = next(assignment for assignment, starts in count.items() if starts > 1)
        return f"{twice} runs as {[start for assignment, start in sight.living if assignment == twice]}"
    return None


def exclusive_alone(sight: Sight) -> str | None:
    """An exclusive deployment has never more living engines than replicas, whichever nodes they are on. Where fewer are
    wanted than live, what is too much may end, and nothing comes to it but what was ordered before."""
    state = sight.shadow.replay.state
    exclusive = {name: one.spec for name, one in state.deployments.items() if one.spec.exclusive}
    sight.places = {name: places for name, places in sight.places.items() if name in exclusive}
    if not exclusive:
        return None
    sight.deployment_of.update((name, one.deployment) for name, one in state.assignments.items())
    living: dict[DeploymentId | None, list[StartId]] = {}
    for assignment, start in sight.living:
        living.setdefault(sight.deployment_of.get(assignment), []).append(start)
    for name, spec in exclusive.items():
        starts, before = living.get(name, []), sight.places.get(name, 0)
        orders = {(one.assignment, one.generation) for one in state.assignments.values() if one.deployment == name}
        # An order that was given while there were as many places stands until another takes its place.
        orders = sight.orders[name] = orders & sight.orders.get(name, orders) if spec.replicas < before else orders
        alive = {assignment for assignment, _ in sight.living}
        # As may what was taken back while it was being started, until its node says that it is gone.
        ordered = {assignment for assignment, _ in orders}
        ordered |= {assignment for assignment, one in state.leaving.items() if one.deployment == name}
        may_live = len(starts) + len(ordered - alive)
        places = sight.places[name] = max(spec.replicas, min(before, may_live))
        if (may_live if spec.replicas < before else len(starts)) > places:
            return f"{sorted(starts)} live at once, {name} has {places} place{'' if places == 1 else 's'}"
    return None


def door_lease(sight: Sight) -> str | None:
    """Nothing passes a data listener without a live lease, or to another start than the one that was named."""
    for one in sight.at_doors():
        if one.unleased_ms > _NOTICED_MS:
            return f"{one.node} passes on to {one.asked_for}, without a lease for {one.unleased_ms} ms"
        if one.reached not in (None, one.asked_for):
            return f"{one.node} passes on to {one.reached} what was meant for {one.asked_for}"
    return None
