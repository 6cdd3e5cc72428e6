"""The replicas of one deployment, by what becomes of them.

A node that is to be emptied keeps a replica that serves for as long as the one that is to take its place is not ready
(it *covers*), until the node's time is over: only then its requests end and it goes. Where no other node can have one
nothing is waited for. On top of what is wanted there is one replica at most meanwhile; what may still run on lost nodes
is not counted, since nobody can know.

An exclusive deployment has never more than is wanted, and what may run on lost nodes counts: nothing covers, and a
place is filled when it is free (``exclusive``). Where places were taken away and what had them has not ended yet it is
*crowded*: then nothing starts, so that what stays is not replaced by its next generation either.
"""

from collections.abc import Sequence

import attrs

from lunanexa_core.deployment import Assignment, Deployment
from lunanexa_core.ids import AssignmentId, DeploymentId, NodeId
from lunanexa_core.observed import Observed
from lunanexa_core.placement.declined import declined_by
from lunanexa_core.placement.exclusive import TakenPlace, taken_places
from lunanexa_core.placement.feasible import NotFeasible, why_not_feasible
from lunanexa_core.placement.standing import Standing, View, view_of
from lunanexa_core.policy import Policy
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.state import State
from lunanexa_core.time import Instant


@attrs.frozen(kw_only=True)
class Roster:
    """``keeps`` fill places. ``covers`` serve on in nodes that are being emptied; ``leaves`` are all of those nodes.
    ``returns`` are on lost nodes and would be welcome. ``surplus`` goes at once. ``open`` places are unfilled, of which
    ``places`` may be filled now, if there is a node. ``crowded``: nothing may start now."""

    keeps: tuple[Assignment, ...]
    covers: frozenset[AssignmentId]
    leaves: tuple[Assignment, ...]
    returns: tuple[Assignment, ...]
    surplus: tuple[Assignment, ...]
    open: int
    places: int
    crowded: bool


def roster(view: View, deployment: Deployment, own: Sequence[Assignment]) -> Roster:
    """The roster of ``own``, which are all assignments of ``deployment``."""
    by: dict[Standing, list[Assignment]] = {standing: [] for standing in Standing}
    for assignment in own:
        by[view.standing(assignment)].append(assignment)
    wanted = deployment.spec.replicas
    ready = {one.assignment for one in own if view.is_ready(one)}
    stays = sorted(by[Standing.STAYS], key=lambda one: (one.assignment not in ready, _cordoned(view, one)))
    keeps, surplus = stays[:wanted], stays[wanted:]
    missing = wanted - sum(1 for one in keeps if one.assignment in ready)
    room = wanted + 1 - len(keeps) - len(by[Standing.LEAVES])
    if deployment.spec.exclusive:
        room = wanted - len(taken_places(view, deployment, own))
    open_places = wanted - len(keeps)
    # One that is not ready holds its place in an exclusive deployment as one that is.
    returns = by[Standing.LOST][: open_places if deployment.spec.exclusive else missing]
    return Roster(
        keeps=tuple(keeps),
        covers=_covers(view, deployment, by[Standing.LEAVES], ready, missing, open_places),
        leaves=tuple(by[Standing.LEAVES]),
        returns=tuple(returns),
        surplus=(*surplus, *by[Standing.LOST][len(returns) :], *by[Standing.GONE]),
        open=open_places,
        places=max(0, min(open_places, room)),
        crowded=deployment.spec.exclusive and room < 0,
    )


def awaited_places(view: View, deployment: Deployment, own: Sequence[Assignment]) -> tuple[TakenPlace, ...]:
    """What keeps the open places of an exclusive deployment from being filled, and its replicas from being replaced."""
    if not deployment.spec.exclusive:
        return ()
    found = roster(view, deployment, own)
    if found.places or not (found.open or found.crowded):
        return ()
    kept = {one.assignment for one in found.keeps}
    return tuple(place for place in taken_places(view, deployment, own) if place.assignment not in kept)


def covering(
    state: State, observed: Observed, policy: Policy, deployment: DeploymentId, now: Instant
) -> frozenset[AssignmentId]:
    """The replicas of ``deployment`` that are granted requests though their nodes are to be emptied."""
    own = [one for _, one in sorted(state.assignments.items()) if one.deployment == deployment]
    return roster(view_of(state, observed, policy, now), state.deployments[deployment], own).covers


def nodes_free_for(state: State, observed: Observed, deployment: Deployment) -> list[NodeId]:
    """The nodes that could have one more replica, in stable order."""
    return [name for name, reasons in refusals(state, observed, deployment).items() if not reasons]


def refusals(state: State, observed: Observed, deployment: Deployment) -> dict[NodeId, tuple[NotFeasible, ...]]:
    """Why each node can't take one more replica; a feasible one has no reasons."""
    taken = {one.node for one in state.assignments.values() if one.deployment == deployment.spec.deployment}
    declined = declined_by(state, observed, deployment.spec.deployment)
    return {
        name: why_not_feasible(node, taken=name in taken, declined=declined.get(name))
        for name, node in sorted(state.nodes.items())
    }


def declining(view: View, deployment: Deployment, found: Roster) -> list[Assignment]:
    """The replicas whose nodes don't run them and which another node can have: as many as there are such nodes, beyond
    those for what has no place."""
    declined = declined_by(view.state, view.observed, deployment.spec.deployment)
    stuck = [one for one in found.keeps if one.node in declined and not view.in_flight(one.assignment)]
    if not stuck or view.frozen:
        return []
    return stuck[: max(0, len(nodes_free_for(view.state, view.observed, deployment)) - found.open)]


def _covers(
    view: View,
    deployment: Deployment,
    leaves: Sequence[Assignment],
    ready: set[AssignmentId],
    missing: int,
    open_places: int,
) -> frozenset[AssignmentId]:
    """As many as have a successor that is not ready: one that is there already, or one for which there is a node."""
    candidates = [one.assignment for one in leaves if one.assignment in ready and not view.is_due(one)]
    if deployment.spec.exclusive or not candidates or missing <= 0:
        return frozenset()
    on_the_way = missing - open_places
    if open_places:
        on_the_way += min(open_places, len(nodes_free_for(view.state, view.observed, deployment)))
    return frozenset(candidates[:on_the_way])


def _cordoned(view: View, assignment: Assignment) -> bool:
    return view.state.nodes[assignment.node].directive is Directive.CORDON
