"""Which token may do what on the operator plane."""

from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.admission.admit import authorise
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Refusal


def find_operator(kernel: Kernel, token: str | None, *roles: Role) -> ApiKey | Refusal:
    """The key of this token, if it holds one of ``roles``."""
    digest = secret_digest(token or "")
    found = authorise(kernel.state, digest, roles[0], kernel.now())
    for role in roles[1:]:
        if not isinstance(found, Refusal):
            break
        other = authorise(kernel.state, digest, role, kernel.now())
        found = found if isinstance(other, Refusal) else other
    return found
