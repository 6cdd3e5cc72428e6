"""Backups as people read of them."""

from lunanexa_apps.backup.manifest import Manifest
from lunanexa_apps.backup.verify import Verified
from lunanexa_apps.cli.journal_page import wall_time
from lunanexa_apps.cli.tools import printable

_NO_PROOF = "whoever has that key; this does not prove who made it (compare: --key, or --data-dir)"


def manifest_page(manifest: Manifest) -> str:
    """What a backup says of itself."""
    rows = ", ".join(f"{count:,} {chain}" for chain, count in sorted(manifest.rows.items()))
    lines = [
        f"cluster  {manifest.cluster}",
        f"made     {wall_time(manifest.made_wall_ms)} by version {manifest.version}",
        f"rows     {rows}",
        f"head     sequence {manifest.head.sequence}, epoch {manifest.head.epoch}",
        f"state    {manifest.state_digest}",
    ]
    if manifest.pruned is not None:
        lines.insert(4, f"pruned   the ledger up to row {manifest.pruned.until}, by row {manifest.pruned.sequence}")
    return printable("\n".join(lines))


def verified_page(found: Verified) -> str:
    """What a verification found."""
    lines = [] if found.manifest is None else [manifest_page(found.manifest)]
    if found.signature is not None:
        told = {True: "the key that it was compared with", False: "ANOTHER KEY", None: _NO_PROOF}[found.origin]
        lines.append(f"signed   {found.signature.key_id} ({found.signature.public_key})\n         {told}")
    if found.manifest is not None and found.ok and not found.replayed:
        lines.append("state    not compared: another version of lunanexa made it")
    return printable("\n".join(lines))
