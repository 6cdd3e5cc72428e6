"""The keys by which a controller speaks for its cluster, in the files of one folder.

``authority.pem`` and ``signing.pem`` are the first ones, made here or brought by an operator. Those that a rotation
makes lie beside them, as ``authority-<16 hex>.pem`` and ``signing-<16 hex>.pem``: the digits are milliseconds of Unix,
the same for what was made together, and rise from one to the next, so that names sort by age.
"""

import os
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from lunanexa_adapters.crypto.authority import LocalAuthority, make_authority
from lunanexa_adapters.crypto.authority_files import load_authority
from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_adapters.files.atomic import create_atomic, remove_durably
from lunanexa_core.identity.certificate import CertificateTerms
from lunanexa_core.identity.trust import Authority, SigningKey
from lunanexa_ports.clock import Clock
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.fleet_keys import FleetKeys, Revoked
from lunanexa_ports.signing import Signer

_STAMP_MAX: Final = (1 << 64) - 1
_STAMPED: Final = re.compile(r"(authority|signing)-([0-9a-f]{16})\.pem\Z")


class LocalFleetKeys(FleetKeys):
    """The keys in ``folder``, of which ``clock`` says whether they have expired. What is copied into it while it is
    open is found. Calls may come from any thread."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[str, LocalAuthority] = {}

    def authorities(self) -> Mapping[str, Authority]:
        with self._lock:
            self._known = self._read_authorities()
            if not self._known:
                self._create_authority(self._folder / "authority.pem")
                self._known = self._read_authorities()
            return {fingerprint: found.public for fingerprint, found in self._known.items()}

    def signers(self) -> Mapping[str, Signer]:
        with self._lock:
            paths = self._paths("signing") or [self._folder / "signing.pem"]
            return {found.key_id: found for found in map(Ed25519Signer.load_or_create, paths)}

    def make(self) -> tuple[Authority, SigningKey]:
        with self._lock:
            stamp = max(self._now_ms(), self._newest_stamp() + 1)
            if stamp > _STAMP_MAX:
                raise PortFault(f"no key can come after the newest in {self._folder}: give that a name of lower digits")
            signer = Ed25519Signer.load_or_create(self._folder / f"signing-{stamp:016x}.pem")
            authority = self._create_authority(self._folder / f"authority-{stamp:016x}.pem")
            return authority, SigningKey(key_id=signer.key_id, public_key=signer.public_key)

    def issue(self, fingerprint: str, request: bytes, terms: CertificateTerms) -> str | None:
        authority = self._authority(fingerprint)
        if authority.expires_s * 1_000 <= self._now_ms():
            raise PortFault(
                f"a certificate of the authority {fingerprint} in {self._folder} has expired, so nobody would believe"
                " what it issues: rotate to a new one"
            )
        return authority.issue(request, terms)

    def revocation_list(self, fingerprint: str, revoked: Sequence[Revoked], *, number: int, now_s: int) -> str:
        return self._authority(fingerprint).revocation_list(revoked, number=number, now_s=now_s)

    def forget(self, authority: str, signing_key: str) -> None:
        with self._lock:
            for path in self._paths("authority"):
                found = load_authority(path, now_s=0)
                if found is not None and found.public.fingerprint == authority:
                    remove_durably(path)
            for path in self._paths("signing"):
                if Ed25519Signer.load_or_create(path).key_id == signing_key:
                    remove_durably(path)
            self._known.pop(authority, None)

    def _authority(self, fingerprint: str) -> LocalAuthority:
        with self._lock:
            if fingerprint not in self._known:
                self._known = self._read_authorities()
            found = self._known.get(fingerprint)
        if found is None:
            raise PortFault(f"the key of the authority {fingerprint} is not in {self._folder}: copy it there")
        return found

    def _create_authority(self, path: Path) -> Authority:
        made = make_authority(self._now_ms() // 1_000)
        create_atomic(path, made.pem)  # of two processes at once the second finds the first one's
        found = load_authority(path, self._now_ms() // 1_000)
        if found is None:
            raise PortUnavailable(f"the authority {path} was removed while it was made")
        return found.public

    def _read_authorities(self) -> dict[str, LocalAuthority]:
        """Of two chains up to one root the newer counts: its issuing certificate was made anew."""
        now_s = self._now_ms() // 1_000
        found = [load_authority(path, now_s) for path in self._paths("authority")]
        return {one.public.fingerprint: one for one in found if one is not None}

    def _paths(self, kind: str) -> list[Path]:
        """The files of a kind that are there, oldest first."""
        names = self._names()
        stamped = sorted(name for name in names if name.startswith(kind) and _STAMPED.match(name))
        first = f"{kind}.pem"
        return [self._folder / name for name in ([first, *stamped] if first in names else stamped)]

    def _newest_stamp(self) -> int:
        matches = map(_STAMPED.match, self._names())
        return max((int(match.group(2), 16) for match in matches if match is not None), default=0)

    def _names(self) -> list[str]:
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise PortUnavailable(f"the folder {self._folder} can't be read: {error.strerror}") from error

    def _now_ms(self) -> int:
        return self._clock.now().wall_ms
