"""Which token may do what on the operator plane."""

from lunanexa_apps.controller.batches import STORE_DOWN
from lunanexa_apps.controller.kernel import Kernel
from lunanexa_core.admission.admit import authorise
from lunanexa_core.keys import ApiKey, Role, secret_digest
from lunanexa_core.outcomes import Refusal


def find_operator(kernel: Kernel, token: str | None, *roles: Role, standby: bool = False) -> ApiKey | Refusal:
    """The key of this token, if it holds one of ``roles``. ``standby``: what is asked can be answered by a controller
    that does not lead, too, as of where it has read the journal."""
    if not kernel.replayed:
        return STORE_DOWN  # No key is known yet: nobody's can be wrong.
    digest = secret_digest(token or "")
    found = authorise(kernel.state, digest, roles[0], kernel.now())
    for role in roles[1:]:
        if not isinstance(found, Refusal):
            break
        other = authorise(kernel.state, digest, role, kernel.now())
        found = found if isinstance(other, Refusal) else other
    if isinstance(found, Refusal) or standby:
        return found
    return kernel.unserved() or found
