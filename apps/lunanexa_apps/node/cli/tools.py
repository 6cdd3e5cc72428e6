"""What commands get from the composition root, and what they hand back to it."""

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

import attrs

from lunanexa_apps.cli.tools import Run
from lunanexa_apps.node.air_gap.places import PlaceTools
from lunanexa_apps.node.doctor import Instruments
from lunanexa_apps.node.enrolment import Admission
from lunanexa_apps.node.folder import NodeFolder
from lunanexa_apps.node.plan import Told
from lunanexa_apps.node.policy_file import OwnersPolicy
from lunanexa_apps.node.settings import LocalPorts, NodePorts
from lunanexa_apps.node.token_file import TokenFile
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.drivers.specification import EngineAddress
from lunanexa_core.nodes.policy import NodePolicy
from lunanexa_core.southbound.bundle import Blob
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.private_files import HeldLock, LockHeld
from lunanexa_ports.signing import Signer, Verifier


@attrs.frozen(kw_only=True)
class RunOrder:
    """How the agent shall run."""

    data_dir: str
    told: Told
    token_file: TokenFile | None
    policy: NodePolicy
    heartbeat_ms: int
    log_format: str
    verbose: bool
    air_gap: "AirGapPlaces | None" = None
    """``None``: the node follows a controller."""


@attrs.frozen(kw_only=True)
class AirGapPlaces:
    """Where people bring and fetch what a node without a network follows and says."""

    inbox: str
    outbox: str
    counter: str
    """The file beside the policy."""


@attrs.frozen(kw_only=True)
class MediaTools:
    """What making bundles and reading outboxes needs of the world. All raise ``PortFault`` and ``PortUnavailable``."""

    verifier: Verifier
    read_key: Callable[[str, bool], Signer]
    """The private key in that file; ``True``: made where there is none."""
    read_file: Callable[[str], bytes]
    """A small file."""
    read_bundle: Callable[[str], SignedDocument | None]
    """Of a folder, not verified; ``None``: there is none that can be read."""
    describe_blob: Callable[[str], Blob]
    write_bundle: Callable[[str, SignedDocument, Sequence[tuple[str, Blob]]], None]
    """Into a folder that is not there yet, with those files as its blobs."""
    read_reports: Callable[[str], Sequence[tuple[str, bytes]]]
    """Of an outbox, by file name."""


@attrs.frozen(kw_only=True)
class NodeTools:
    """Makers of adapters, and what only the composition root may do."""

    run: Run
    version: str
    serve: Callable[[RunOrder], int]
    """Runs the agent until it is told to stop; the exit status."""
    lock: Callable[[str], HeldLock | LockHeld]
    """Of the data directory that is named: one agent runs on it at a time."""
    open_ports: Callable[[str], AbstractAsyncContextManager[NodePorts]]
    """All of an agent's ports on a data directory, made where there is none."""
    open_local: Callable[[str], AbstractAsyncContextManager[LocalPorts]]
    """The same, as far as they need no network."""
    look: Callable[[str], AbstractAsyncContextManager[tuple[NodeFolder, Instruments]]]
    """The same for looking only."""
    token_file: Callable[[str], TokenFile]
    read_policy: Callable[[str | None], OwnersPolicy]
    """The file that is named, which must be there then; else the usual one. Raises ``PortFault``."""
    address_towards: Callable[[EngineAddress], str | None]
    why_not_listen: Callable[[HostPort], str | None]
    media: MediaTools
    places: PlaceTools
    start_logging: Callable[[str, bool], None]


def admission_of(told: Told, token_file: TokenFile | None, data_address: HostPort | None) -> Admission | None:
    """What a node asks for with its token."""
    if told.token is None or token_file is None:
        return None
    address = None if data_address is None else str(data_address)
    return Admission(token=told.token, data_address=address, used=token_file.spent, look=token_file.read)
