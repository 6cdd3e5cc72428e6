"""An authority in a file: a private key, the certificate that is issued with, and those above it up to the root.

What an operator brings is checked in full when it is read, so that what is wrong is said then, by the name of the
file, and not by nodes whose handshakes fail.
"""

from itertools import pairwise
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from lunanexa_adapters.crypto.authority import IssuingKey, LocalAuthority
from lunanexa_adapters.crypto.certificates import (
    is_authority,
    is_root,
    issued_by,
    parse_private,
    read_certificates,
    same_key,
)
from lunanexa_adapters.files.owned_file import KEY, read_owned_file
from lunanexa_ports.errors import PortFault

_RSA_BITS_MIN: Final = 2_048


def load_authority(path: Path, now_s: int) -> LocalAuthority | None:
    """What ``path`` holds, in that order, PEM. ``None`` when there is no such file. Raises ``PortFault`` that says what
    is wrong with it, ``PortUnavailable`` when it can't be read."""
    pem = read_owned_file(path, KEY)
    if pem is None:
        return None
    key, chain = _issuing_key(path, parse_private(path, pem)), read_certificates(pem)
    problem = _problem(key, chain)
    if problem is not None:
        raise PortFault(f"{path}: {problem}")
    found = LocalAuthority(key=key, chain=chain)
    if found.expires_s <= now_s:
        raise PortFault(
            f"{path}: one of its certificates has expired: put in its place a key and a chain that are good"
        )
    return found


def _issuing_key(path: Path, key: PrivateKeyTypes) -> IssuingKey:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1 | ec.SECP384R1):
        return key
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size >= _RSA_BITS_MIN:
        return key
    raise PortFault(
        f"{path}: its key is neither Ed25519, P-256, P-384 nor RSA of {_RSA_BITS_MIN} bits: bring one that is"
    )


def _problem(key: IssuingKey, chain: tuple[x509.Certificate, ...]) -> str | None:
    """Why these are no authority, and what mends it."""
    if not chain:
        return "after the key there must be its certificate, and those above it up to the root (PEM)"
    if not same_key(key, chain[0]):
        return "the first certificate is not of that key: put the one first that is to issue others"
    for place, one in enumerate(chain):
        lack = _lack(one, below=place)
        if lack is not None:
            return f"certificate {place + 1} {lack}"
    for place, (one, above) in enumerate(pairwise(chain), 1):
        if not issued_by(one, above):
            return (
                f"certificate {place} was not issued by certificate {place + 1}: order them from the key's to the root"
            )
    if not is_root(chain[-1]):
        return "the last certificate is no root: add those that are missing, up to one that is signed by itself"
    return None


def _lack(authority: x509.Certificate, below: int) -> str | None:
    """What a certificate needs to stand above ``below`` other authorities in a handshake."""
    if not is_authority(authority):
        return "may not issue others: it needs basic constraints CA and key usage keyCertSign"
    length = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.path_length
    if length is not None and length < below:
        return f"allows {length} authorities below it, and there are {below}"
    key = authority.public_key()
    if isinstance(key, rsa.RSAPublicKey) and key.key_size < _RSA_BITS_MIN:
        return f"has an RSA key of less than {_RSA_BITS_MIN} bits, which no handshake accepts"
    return None
