"""Files that hold private keys: read only while nobody else may read them."""

import os
import stat
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes

from lunanexa_adapters.crypto.certificates import PEM_BYTES_MAX, UNREADABLE
from lunanexa_ports.errors import PortFault, PortUnavailable

_OTHERS: Final = 0o077


def read_private(path: Path) -> bytes | None:
    """What a file holds; ``None`` when there is none. Raises ``PortFault`` when it is another user's, when others may
    read it or it is no file of keys, ``PortUnavailable`` when it can't be read."""
    try:
        # Not to wait for the writer of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error) from error
    try:
        found = os.fstat(descriptor)
        mode = found.st_mode
        if not stat.S_ISREG(mode):
            raise PortFault(f"{path} is no regular file: move it away")
        if found.st_uid not in (os.geteuid(), 0):
            raise PortFault(f"{path} is another user's: run `chown {os.geteuid()} {path}` if you trust what it holds")
        if mode & _OTHERS:
            raise PortFault(f"{path} may be read by others: run `chmod 600 {path}`")
        with open(descriptor, "rb", closefd=False) as file:
            data = file.read(PEM_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(descriptor)
    if len(data) > PEM_BYTES_MAX:
        raise PortFault(f"{path} is longer than {PEM_BYTES_MAX} bytes, so it is another file: move it away")
    return data


def parse_private(path: Path, pem: bytes) -> PrivateKeyTypes:
    """The private key in what ``path`` holds (PEM, PKCS #8, not encrypted). Raises ``PortFault``."""
    try:
        return serialization.load_pem_private_key(pem, password=None)
    except UNREADABLE as error:
        raise PortFault(f"{path} holds no private key that can be read") from error


def _unreadable(path: Path, error: OSError) -> PortUnavailable:
    return PortUnavailable(f"{path} can't be read: {error.strerror}")
