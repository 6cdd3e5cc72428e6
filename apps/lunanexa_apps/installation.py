"""An installation on this machine: what lies where below its data directory, and its secrets.

Secrets are made once, each in a file of its own that only this user can read; the controller and the node
agent read them there, so that none of them ever stands in an argument or a variable. All that is refused
here is raised as ``PortFault``: the file is there and is wrong, and the message says what mends it.
"""

import json
from collections.abc import Mapping
from typing import Final

import attrs

from lunanexa_apps.setting_kinds import HostPort
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.keys import API_KEY_PREFIX, weak_secret
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_ports.private_files import PrivateFiles

LOCAL_NODE: Final = NodeId("local")
"""The node of an installation on one machine."""

UP_LOCK: Final = "up.lock"
CONTROLLER_LOCK: Final = "lock"
NODE_LOCK: Final = "node/lock"
API_KEY: Final = "controller/secrets/api_key"
OPERATOR_TOKEN: Final = "controller/secrets/operator_token"
SECRETS: Final = "controller/secrets"
SIGNING_KEY: Final = "controller/secrets/signing.pem"
"""Made at the first start, after the secrets."""
ENGINE_SECRET: Final = "controller/secrets/engine_secret"
NODE_IDENTITY: Final = "node/identity/identity.pem"
"""The node's own key and certificate, from its enrolment on."""
NODE_TOKEN: Final = "node/secrets/token"
"""The token by which it enrols, until it has."""
CONTROLLER_ADOPTED_KEYS: Final = "controller/secrets/adopted_keys"
NODE_ADOPTED_KEYS: Final = "node/secrets/adopted_keys"
"""Keys of servers that somebody else runs, by URL: the gateway shows them with requests, the node with probes."""
STORE: Final = "controller/store.sqlite3"
"""Journal and ledger."""
HOLDER: Final = "controller/holder"
"""The name under which this installation's controllers lead a store, one after another."""
KNOWN_HEAD: Final = "controller/known"
"""How far a controller here has seen the store."""
LISTEN: Final = "controller/listen"
"""Written by a controller that serves: ``{"host", "port", "base_url"}``."""

_MAKE_ANOTHER: Final = "remove the file to have a new one made"


@attrs.frozen(kw_only=True, repr=False)
class ControllerSecrets:
    """The controller's secrets. Engine keys are derived from ``engine_secret``, which is never shown."""

    api_key: str
    operator_token: str
    engine_secret: str


@attrs.frozen(kw_only=True)
class Installation:
    """What a client of the installation needs, and where a person finds it."""

    api_key: str = attrs.field(repr=False)
    operator_token: str = attrs.field(repr=False)
    api_key_file: str
    operator_token_file: str


def keep_secrets(files: PrivateFiles, ids: IdSource) -> ControllerSecrets:
    """Reads the controller's secrets, and makes what is missing. Weak or equal ones are refused, and so is a new
    engine secret in an installation that has run: the keys of its engines were derived from the one that is lost."""
    engine_secret = _keep_engine_secret(files, ids)
    secrets = ControllerSecrets(
        api_key=_keep(files, API_KEY, API_KEY_PREFIX + ids.secret()),
        operator_token=_keep(files, OPERATOR_TOKEN, ids.secret()),
        engine_secret=engine_secret,
    )
    first_with: dict[str, str] = {}
    for name, secret in zip((API_KEY, OPERATOR_TOKEN, ENGINE_SECRET), attrs.astuple(secrets), strict=True):
        other = first_with.setdefault(secret, name)
        if other != name:
            raise PortFault(f"{files.place(name)}: the secret equals the one in {files.place(other)}; {_MAKE_ANOTHER}")
    return secrets


def keep_holder(files: PrivateFiles, ids: IdSource) -> str:
    """The installation's name as a leader, made once."""
    found = files.read(HOLDER)
    if found is not None and is_identifier(found.decode("ascii", "replace").strip()):
        return found.decode().strip()
    name = ids.new("holder")
    files.replace(HOLDER, name.encode() + b"\n")
    return name


def _keep_engine_secret(files: PrivateFiles, ids: IdSource) -> str:
    if _has_run(files) and files.read(ENGINE_SECRET) is None:
        raise PortFault(
            f"{files.place(ENGINE_SECRET)} is missing; copy it back from a backup, or remove the whole data directory"
        )
    return _keep(files, ENGINE_SECRET, ids.secret())


def _has_run(files: PrivateFiles) -> bool:
    """Whether a controller was here whose other secrets are. A rotation removes the first signing key."""
    there = {name for name in (API_KEY, HOLDER, SIGNING_KEY) if files.read(name) is not None}
    return SIGNING_KEY in there or {HOLDER, API_KEY} <= there


def prepare_installation(files: PrivateFiles, ids: IdSource) -> Installation:
    """Makes what is missing, keeps what is there."""
    secrets = keep_secrets(files, ids)
    return _installation(files, secrets.api_key, secrets.operator_token)


def read_installation(files: PrivateFiles) -> Installation | None:
    """An installation that exists, or ``None``."""
    api_key = _read_secret(files, API_KEY, _MAKE_ANOTHER)
    if api_key is None:
        return None
    operator_token = _read_secret(files, OPERATOR_TOKEN, _MAKE_ANOTHER)
    if operator_token is None:
        raise PortFault(f"{files.place(OPERATOR_TOKEN)} is missing; the next start of lunanexa up makes it")
    return _installation(files, api_key, operator_token)


def write_adopted_keys(files: PrivateFiles, keys: Mapping[str, str]) -> None:
    """Keeps the keys of adopted servers for the processes that start next, or none any more."""
    for name in (CONTROLLER_ADOPTED_KEYS, NODE_ADOPTED_KEYS):
        if keys:
            files.replace(name, json.dumps(dict(keys)).encode() + b"\n")
        else:
            files.remove(name)


def read_adopted_keys(files: PrivateFiles, name: str) -> Mapping[str, str]:
    """Keys of adopted servers by URL."""
    try:
        keys = json.loads(files.read(name) or b"{}")
    except ValueError:
        keys = None
    if not isinstance(keys, dict) or not all(isinstance(key, str) for key in keys.values()):
        raise PortFault(f"{files.place(name)}: no keys by URL; the next start of lunanexa up writes it anew")
    return keys


def write_address(files: PrivateFiles, address: HostPort) -> str:
    """Says where the controller serves; returns the base URL."""
    base_url = f"http://{address}/v1"
    document = {"host": address.host, "port": address.port, "base_url": base_url}
    files.replace(LISTEN, json.dumps(document).encode() + b"\n")
    return base_url


def read_address(files: PrivateFiles) -> HostPort | None:
    """Where the installation's controller said that it listens; ``None`` when none serves, or none has yet."""
    try:
        document = json.loads(files.read(LISTEN) or b"null")
        host, port = document["host"], document["port"]
    except (ValueError, TypeError, KeyError):
        return None
    return HostPort(host, port) if isinstance(host, str) and isinstance(port, int) else None


def _installation(files: PrivateFiles, api_key: str, operator_token: str) -> Installation:
    return Installation(
        api_key=api_key,
        operator_token=operator_token,
        api_key_file=files.place(API_KEY),
        operator_token_file=files.place(OPERATOR_TOKEN),
    )


def _keep(files: PrivateFiles, name: str, secret: str) -> str:
    """The secret in the file; ``secret`` is put there first when there is none."""
    found = _read_secret(files, name, _MAKE_ANOTHER)
    if found is None:
        # Read again: of two processes that start at once both go on with the first one's.
        files.create(name, secret.encode() + b"\n")
        found = _read_secret(files, name, _MAKE_ANOTHER)
    if found is None:
        raise PortUnavailable(f"{files.place(name)} was removed while it was made; start again")
    return found


def _read_secret(files: PrivateFiles, name: str, fix: str) -> str | None:
    data = files.read(name)
    if data is None:
        return None
    secret = data.decode("ascii", "replace").strip()
    weakness = weak_secret(secret)
    if weakness is not None:
        raise PortFault(f"{files.place(name)}: the secret is {weakness.value}; {fix}")
    if not (secret.isascii() and secret.isprintable()):
        raise PortFault(f"{files.place(name)}: the secret is not one line of printable ASCII; {fix}")
    return secret
