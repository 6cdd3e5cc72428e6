"""A look at what an air-gapped node goes by, beside its data directory: the owner's policy and where media are."""

from collections.abc import Callable
from typing import Final

import attrs

from lunanexa_apps.node.findings import Finding, problem
from lunanexa_apps.node.policy_file import OwnersPolicy
from lunanexa_ports.errors import PortError

COUNTER_SUFFIX: Final = ".counter"
"""Of the file beside the policy."""


@attrs.frozen(kw_only=True)
class PlaceTools:
    """Each looks at a path, says what is there, changes nothing, and raises ``PortFault`` where it can't be used."""

    inbox: Callable[[str], str]
    outbox: Callable[[str], str]
    counter: Callable[[str], str]


def look_at_places(policy: OwnersPolicy, inbox: str | None, outbox: str | None, with_: PlaceTools) -> list[Finding]:
    """A finding each; ``None``: that place was not named."""
    findings = [_authority(policy), _seen("counter", with_.counter, policy.place + COUNTER_SUFFIX)]
    if inbox is not None:
        findings.append(_seen("inbox", with_.inbox, inbox))
    if outbox is not None:
        findings.append(_seen("outbox", with_.outbox, outbox))
    return findings


def _authority(policy: OwnersPolicy) -> Finding:
    authority = policy.rules.authority
    if authority is None:
        fix = f'write authority = "…" into {policy.place}, as make-bundle shows it'
        return problem("authority", "the policy names none, so that no bundle could be believed", fix)
    return Finding(step="authority", found=authority)


def _seen(step: str, look: Callable[[str], str], place: str) -> Finding:
    try:
        return Finding(step=step, found=look(place))
    except PortError as error:
        return problem(step, str(error), "mend what it names; the agent needs it")
