"""A bundle as files: ``bundle.json``, its signature beside it, and its blobs as an OCI image layout (image-spec 1.1).

``bundle.json`` alone says what belongs to a bundle. Index and manifest are for tools that copy OCI layouts, and are
not read by a node.
"""

import base64
import binascii
import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lunanexa_adapters.files.atomic import write_atomic
from lunanexa_core.canonical import JsonValue, NotCanonical, canonical_json, strict_json
from lunanexa_core.southbound.bundle import Blob, blob_path
from lunanexa_core.southbound.documents import SignedDocument
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.inbox import BUNDLE_BYTES_MAX

BUNDLE: Final = "bundle.json"
SIGNATURE: Final = "bundle.json.sig"
ARTIFACT_TYPE: Final = "application/vnd.lunanexa.bundle.v1"
PIECE_BYTES: Final = 1 << 20
_SIGNATURE_BYTES_MAX: Final = 4_096
_READABLE: Final = 0o644
_NOTHING: Final = b"{}"
"""The empty descriptor of image-spec 1.1, for a manifest that has no configuration."""


def signature_bytes(document: SignedDocument) -> bytes:
    """What ``bundle.json.sig`` holds."""
    return canonical_json({"key_id": document.key_id, "signature": base64.b64encode(document.signature).decode()})


def read_bundle(folder: Path) -> SignedDocument | ValueError | None:
    """The bytes as signed, not verified; an error for what can't be one; ``None`` where either file is missing.
    Raises ``OSError``."""
    try:
        payload = read_bounded(folder / BUNDLE, BUNDLE_BYTES_MAX)
        signature = read_bounded(folder / SIGNATURE, _SIGNATURE_BYTES_MAX)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as error:
        return error
    try:
        parsed = strict_json(signature)
    except NotCanonical as error:
        return error
    match parsed:
        case {"key_id": str(key_id), "signature": str(text)}:
            try:
                return SignedDocument(payload=payload, key_id=key_id, signature=base64.b64decode(text, validate=True))
            except (binascii.Error, ValueError):
                return ValueError(f"{folder / SIGNATURE}: signature is not base 64")
        case _:
            return ValueError(f"{folder / SIGNATURE} is not an object with key_id and signature")


def open_regular(path: Path) -> int:
    """A descriptor for reading a regular file that no link leads to. Raises ``OSError``, and ``ValueError`` for
    anything else than such a file."""
    try:
        # Not to wait for the writer of a named pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{path} is a link") from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise ValueError(f"{path} is no regular file")


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All of a regular file. Raises ``OSError``, and ``ValueError`` for one that is longer or none."""
    with open(open_regular(path), "rb") as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"{path} is longer than {most_bytes} bytes")
    return data


def read_file(path: Path) -> bytes:
    """A small file that a person named. Raises ``PortFault`` for what is none, ``PortUnavailable`` as disks do."""
    try:
        return read_bounded(path.resolve(strict=True), BUNDLE_BYTES_MAX)
    except ValueError as error:
        raise PortFault(str(error)) from error
    except OSError as error:
        raise PortUnavailable(f"{path} can't be read: {error.strerror}") from error


def read_whole_bundle(folder: Path) -> SignedDocument | None:
    """:func:`read_bundle` for a person's tool: ``None`` for anything that is no bundle. Raises ``PortUnavailable``."""
    try:
        found = read_bundle(folder)
    except OSError as error:
        raise PortUnavailable(f"{folder} can't be read: {error.strerror}") from error
    return None if isinstance(found, ValueError) else found


def describe_blob(path: Path) -> Blob:
    """Reads all of a file. Raises ``PortFault`` for what is no regular file, ``PortUnavailable`` as disks do."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        with open(path.resolve(strict=True), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise PortFault(f"{path} is no regular file: name one")
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
                size_bytes += len(piece)
    except OSError as error:
        raise PortUnavailable(f"{path} can't be read: {error.strerror}") from error
    return Blob(path=blob_path(digest.hexdigest()), size_bytes=size_bytes, sha256=digest.hexdigest())


def write_bundle(folder: Path, document: SignedDocument, blobs: Sequence[tuple[Path, Blob]]) -> None:
    """Makes ``folder``; the signature's file comes last, so that a node does not see it before it is whole. Raises
    ``PortFault`` when it is there already, ``PortUnavailable`` as disks do, with the folder removed again."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise PortFault(f"{folder} is there already: name another folder") from None
    except OSError as error:
        raise PortUnavailable(f"{folder} can't be made: {error.strerror}") from error
    try:
        _write(folder, document, blobs)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise PortUnavailable(f"{folder} can't be written ({error.strerror}): see that the disk has room") from error
    except (PortUnavailable, PortFault):
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, document: SignedDocument, blobs: Sequence[tuple[Path, Blob]]) -> None:
    for path, blob in blobs:
        place = folder / blob.path
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
        if describe_blob(place) != blob:
            raise PortUnavailable(f"{path} was changed while it was copied: try again")
    nothing = _put(folder, _NOTHING)
    manifest: JsonValue = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "artifactType": ARTIFACT_TYPE,
        "config": _descriptor("application/vnd.oci.empty.v1+json", nothing),
        "layers": [
            {
                **_descriptor("application/octet-stream", blob),
                "annotations": {"org.opencontainers.image.title": path.name},
            }
            for path, blob in blobs
        ]
        # A manifest must have a layer; the empty descriptor stands for none.
        or [_descriptor("application/vnd.oci.empty.v1+json", nothing)],
    }
    index: JsonValue = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {
                **_descriptor("application/vnd.oci.image.manifest.v1+json", _put(folder, canonical_json(manifest))),
                "artifactType": ARTIFACT_TYPE,
            }
        ],
    }
    write_atomic(folder / "oci-layout", canonical_json({"imageLayoutVersion": "1.0.0"}), _READABLE)
    write_atomic(folder / "index.json", canonical_json(index), _READABLE)
    write_atomic(folder / BUNDLE, document.payload, _READABLE)
    write_atomic(folder / SIGNATURE, signature_bytes(document), _READABLE)


def _put(folder: Path, data: bytes) -> Blob:
    digest = hashlib.sha256(data).hexdigest()
    write_atomic(folder / blob_path(digest), data, _READABLE)
    return Blob(path=blob_path(digest), size_bytes=len(data), sha256=digest)


def _descriptor(media_type: str, blob: Blob) -> dict[str, JsonValue]:
    return {"mediaType": media_type, "digest": f"sha256:{blob.sha256}", "size": blob.size_bytes}
