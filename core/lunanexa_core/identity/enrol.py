"""How a node becomes one of the fleet: a token is minted for it, and used once."""

import hmac
import re
from typing import Final

from lunanexa_core.commands import EnrolNode, MintToken
from lunanexa_core.events import EnrolmentTokenMinted, NodeEnrolled
from lunanexa_core.identity.token import TOKEN_MS, TOKENS_MAX, KnownToken
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.outcomes import Outcome, Refusal
from lunanexa_core.routing.reach import parse_data_address
from lunanexa_core.southbound.documents import Directive
from lunanexa_core.state import Node, State
from lunanexa_core.time import Instant

REPEAT_MS: Final = 5_000
"""Who did not hear the answer to its enrolment is answered again once in so long: each is a row of the journal and
another document for every node."""
VERSION_MAX: Final = 64
_KEY: Final = re.compile(r"[0-9a-f]{64}\Z")
BAD_TOKEN: Final = Refusal(
    outcome=Outcome.PERMISSION_DENIED,
    message="The token is not one for this node, or it was used, or its time is over; have another one made.",
)
BAD_ADDRESS: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST, message="data_address must be HOST:PORT.", param="data_address"
)
NEEDS_ADDRESS: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST,
    message="This node needs a data_address (HOST:PORT of its data listener): its token was not minted for a node of"
    " the controller's own machine.",
    param="data_address",
)
BAD_VERSION: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST,
    message=f"agent_version must be 1 to {VERSION_MAX} printable characters.",
    param="agent_version",
)
BAD_KEY: Final = Refusal(
    outcome=Outcome.INVALID_REQUEST,
    message="public_key must be a raw Ed25519 public key: 64 lower-case hexadecimal digits.",
    param="public_key",
)
_TOO_MANY: Final = Refusal(
    outcome=Outcome.RATE_LIMITED, message=f"{TOKENS_MAX} tokens are good at present; wait.", retry_after_ms=60_000
)


def is_known(node: Node | None) -> bool:
    """Whether a node is enrolled, or was: then it takes an operator's word to enrol anew."""
    return node is not None and (node.public_key is not None or node.revoked or node.retired)


def good_tokens(state: State, now: Instant) -> dict[NodeId, KnownToken]:
    """Tokens that may yet be used, by node."""
    good = (one for one in state.tokens.values() if one.used_by is None and now.wall_ms < one.expires_wall_ms)
    return {token.node: token for token in good}


def mint_token(state: State, command: MintToken, now: Instant) -> EnrolmentTokenMinted | Refusal:
    """The minting, or why it is refused."""
    if not is_identifier(command.node):
        return Refusal(
            outcome=Outcome.INVALID_REQUEST,
            message="A node's name has ASCII letters, digits and -_.: only, 256 at most.",
            param="node",
        )
    if is_known(state.nodes.get(command.node)) and not command.again:
        return Refusal(
            outcome=Outcome.STALE_GENERATION,
            message="This node is enrolled, or was; ask for the token with `again` (lunanexa node token NAME --again).",
            param="again",
        )
    good = {one.node for one in state.tokens.values() if now.wall_ms < one.expires_wall_ms}
    if len(good - {command.node}) >= TOKENS_MAX:
        return _TOO_MANY
    return EnrolmentTokenMinted(
        node=command.node,
        token=command.token,
        digest=command.digest,
        expires_wall_ms=now.wall_ms + TOKEN_MS,
        loopback=command.loopback,
    )


def enrol(state: State, command: EnrolNode, now: Instant) -> NodeEnrolled | Refusal:
    """The enrolment, or why it is refused."""
    refusal = token_refusal(state, command.node, command.token, command.digest, command.public_key, now)
    if refusal is not None:
        return refusal
    if not _KEY.match(command.public_key):
        return BAD_KEY
    if not is_version(command.agent_version):
        return BAD_VERSION
    if command.data_address is None and not state.tokens[command.token].loopback:
        # Its reports would lead gateways to whatever listens on this machine's loopback.
        return NEEDS_ADDRESS
    if command.data_address is not None and parse_data_address(command.data_address) is None:
        return BAD_ADDRESS
    return NodeEnrolled(
        node=command.node,
        public_key=command.public_key,
        agent_version=command.agent_version,
        token=command.token,
        certificate=command.certificate,
        data_address=command.data_address,
    )


def token_refusal(state: State, node: NodeId, token: str, digest: str, public_key: str, now: Instant) -> Refusal | None:
    """Why a token, whose secret has this digest, does not let in that key as this node. It tells not which is wrong,
    and takes as long for a token that there is not."""
    known = state.tokens.get(token)
    same = hmac.compare_digest("" if known is None else known.digest, digest)
    if known is None or not same or known.node != node or now.wall_ms >= known.expires_wall_ms:
        return BAD_TOKEN
    if known.used_by is None:
        return None
    # Who did not hear the answer may ask again, by the same key; not to undo what an operator has said since.
    enrolled = state.nodes.get(node)
    if enrolled is None or known.used_by != public_key or enrolled.directive is not Directive.ACTIVE:
        return BAD_TOKEN
    since_ms = now.wall_ms - (enrolled.enrolled_wall_ms or 0)
    if since_ms >= REPEAT_MS:
        return None
    return Refusal(
        outcome=Outcome.RATE_LIMITED,
        message="This node was enrolled just now; what it was answered may be on its way.",
        retry_after_ms=REPEAT_MS - since_ms,
    )


def is_version(text: str) -> bool:
    """Whether it may stand in the journal as the version of an agent."""
    return 0 < len(text) <= VERSION_MAX and text.isprintable()
