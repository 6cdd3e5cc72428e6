"""An installation: secrets made once, weak ones refused, and what its processes tell each other in files."""

import json
import stat
from pathlib import Path

import attrs
import pytest

from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_apps.controller.secrets import keys_of
from lunanexa_apps.installation import (
    API_KEY,
    CONTROLLER_ADOPTED_KEYS,
    ENGINE_SECRET,
    HOLDER,
    LISTEN,
    NODE_ADOPTED_KEYS,
    OPERATOR_TOKEN,
    SIGNING_KEY,
    keep_secrets,
    prepare_installation,
    read_address,
    read_adopted_keys,
    read_installation,
    write_address,
    write_adopted_keys,
)
from lunanexa_apps.setting_kinds import HostPort
from lunanexa_apps.up.ready_file import ReadyFacts, ReadyFile
from lunanexa_core.keys import Role, secret_digest
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.ids import IdSource
from lunanexa_simulation.private_files import PrivateFolder, SimulatedPrivateFiles

SECRETS = (API_KEY, OPERATOR_TOKEN, ENGINE_SECRET)


class CountedIds(IdSource):
    """43 characters that differ each time."""

    def __init__(self) -> None:
        self.made = 0

    def new(self, kind: str) -> str:
        raise AssertionError("not used")

    def secret(self) -> str:
        self.made += 1
        return f"{self.made:02d}" + "AbCdEfGhIjKlMnOpQrStUvWxYz0123456789_-abc"

    def below(self, limit: int) -> int:
        raise AssertionError("not used")


@pytest.fixture
def folder() -> PrivateFolder:
    return PrivateFolder(path="/data")


@pytest.fixture
def files(folder: PrivateFolder) -> SimulatedPrivateFiles:
    return SimulatedPrivateFiles(folder)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_secrets_are_made_once(files: SimulatedPrivateFiles, folder: PrivateFolder) -> None:
    first = prepare_installation(files, CountedIds())
    held = dict(folder.files)
    later = CountedIds()
    later.made = 50
    assert prepare_installation(files, later) == read_installation(files) == first
    assert folder.files == held
    assert first.api_key.startswith("lnx_")
    assert len(first.api_key) == 4 + 43
    assert (first.api_key_file, first.operator_token_file) == (f"/data/{API_KEY}", f"/data/{OPERATOR_TOKEN}")
    assert set(held) == set(SECRETS)
    assert first.api_key not in repr(first)
    assert first.operator_token not in repr(first)


def test_a_controller_alone_makes_its_own_and_up_goes_on_with_them(files: SimulatedPrivateFiles) -> None:
    secrets = keep_secrets(files, CountedIds())
    assert len(set(attrs.astuple(secrets))) == 3
    later = CountedIds()
    later.made = 50
    assert prepare_installation(files, later).api_key == secrets.api_key
    assert keep_secrets(files, later) == secrets
    assert secrets.engine_secret not in repr(secrets)


def test_the_kernel_gets_digests(files: SimulatedPrivateFiles) -> None:
    secrets = keep_secrets(files, CountedIds())
    api_key, operator = keys_of(secrets)
    assert (api_key.digest, api_key.roles) == (secret_digest(secrets.api_key), frozenset({Role.INFERENCE}))
    assert (operator.digest, operator.roles) == (secret_digest(secrets.operator_token), frozenset({Role.OPERATOR}))


@pytest.mark.parametrize("name", SECRETS)
def test_a_weak_secret_is_refused_with_its_file_and_the_fix(files: SimulatedPrivateFiles, name: str) -> None:
    files.replace(name, b"short\n")
    with pytest.raises(PortFault, match="shorter than 32 characters; remove the file") as caught:
        prepare_installation(files, CountedIds())
    assert files.place(name) in str(caught.value)
    assert "short\n" not in str(caught.value)


def test_equal_secrets_are_refused(files: SimulatedPrivateFiles) -> None:
    secrets = keep_secrets(files, CountedIds())
    files.replace(OPERATOR_TOKEN, secrets.api_key.encode())
    with pytest.raises(PortFault, match="equals the one in") as caught:
        keep_secrets(files, CountedIds())
    assert files.place(OPERATOR_TOKEN) in str(caught.value)
    assert secrets.api_key not in str(caught.value)


def test_of_two_that_start_at_once_both_have_the_first_ones_secrets(folder: PrivateFolder) -> None:
    class Late(SimulatedPrivateFiles):
        """Another process creates each file between the look and the making."""

        def create(self, name: str, data: bytes) -> bool:
            assert super().create(name, b"the other one's: " + data)
            return super().create(name, data)

    secrets = keep_secrets(Late(folder), CountedIds())
    assert all(secret.startswith("the other one's: ") for secret in attrs.astuple(secrets))


def test_no_installation(files: SimulatedPrivateFiles) -> None:
    assert read_installation(files) is None
    prepare_installation(files, CountedIds())
    files.remove(OPERATOR_TOKEN)
    with pytest.raises(PortFault, match="operator_token is missing"):
        read_installation(files)


def test_a_lost_engine_secret_is_not_made_anew(files: SimulatedPrivateFiles) -> None:
    keep_secrets(files, CountedIds())
    files.create(SIGNING_KEY, b"pem")
    files.remove(ENGINE_SECRET)
    with pytest.raises(PortFault, match="backup"):
        keep_secrets(files, CountedIds())


def test_a_folder_that_is_not_there(files: SimulatedPrivateFiles, folder: PrivateFolder) -> None:
    folder.unavailable = True
    with pytest.raises(PortUnavailable, match=API_KEY):
        prepare_installation(files, CountedIds())
    with pytest.raises(PortUnavailable, match=API_KEY):
        read_installation(files)


def test_the_address_of_a_controller_that_runs(files: SimulatedPrivateFiles) -> None:
    assert read_address(files) is None
    for data in (b"", b"[]", b"\xff", b'{"host": 1, "port": 2}', b'{"host": "h"}'):
        files.replace(LISTEN, data)
        assert read_address(files) is None
    assert write_address(files, HostPort("127.0.0.1", 9)) == "http://127.0.0.1:9/v1"
    assert read_address(files) == HostPort("127.0.0.1", 9)
    assert write_address(files, HostPort("::1", 9)) == "http://[::1]:9/v1"
    assert json.loads(files.read(LISTEN) or b"") == {"host": "::1", "port": 9, "base_url": "http://[::1]:9/v1"}


def test_on_a_disk_everything_is_the_owners(tmp_path: Path) -> None:
    data_dir = tmp_path / "a" / "data"
    files = LocalPrivateFiles(data_dir)
    installation = prepare_installation(files, CountedIds())
    for name in SECRETS:
        assert mode(data_dir / name) == 0o600
    assert mode(data_dir) == mode(data_dir / "controller" / "secrets") == 0o700
    (data_dir / API_KEY).chmod(0o644)
    assert prepare_installation(files, CountedIds()) == installation
    assert mode(data_dir / API_KEY) == 0o600


def test_keys_of_adopted_servers_are_kept_while_they_are_needed(files: SimulatedPrivateFiles) -> None:
    names = (CONTROLLER_ADOPTED_KEYS, NODE_ADOPTED_KEYS)
    assert [read_adopted_keys(files, name) for name in names] == [{}, {}]
    keys = {"http://127.0.0.1:8000": "sesame"}
    write_adopted_keys(files, keys)
    assert [read_adopted_keys(files, name) for name in names] == [keys, keys]
    write_adopted_keys(files, {})
    assert [files.read(name) for name in names] == [None, None]


@pytest.mark.parametrize("content", [b"sesame", b"[]", b'{"http://h:1": 7}', b"\xff"])
def test_a_file_of_keys_that_is_none(files: SimulatedPrivateFiles, content: bytes) -> None:
    files.replace(NODE_ADOPTED_KEYS, content)
    with pytest.raises(PortFault, match="adopted_keys: no keys by URL") as caught:
        read_adopted_keys(files, NODE_ADOPTED_KEYS)
    assert "sesame" not in str(caught.value)


FACTS = ReadyFacts(
    base_url="http://127.0.0.1:8400/v1",
    api_key="lnx_a",
    operator_token="o",
    model="m",
    models=("m", "n"),
    pids={"controller": 1, "node": 2, "engine": None},
)


def test_the_ready_file(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by a predecessor")
    ready = ReadyFile(LocalPrivateFiles(tmp_path), "ready.json")
    ready.remove()
    ready.remove()
    assert not path.exists()
    ready.write(FACTS)
    assert mode(path) == 0o600
    assert json.loads(path.read_text()) == {
        "base_url": "http://127.0.0.1:8400/v1",
        "api_key": "lnx_a",
        "operator_token": "o",
        "model": "m",
        "models": ["m", "n"],
        "pids": {"controller": 1, "node": 2, "engine": None},
    }
    inode = path.stat().st_ino
    ready.write(FACTS)
    assert path.stat().st_ino == inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["ready.json"]
    assert "lnx_a" not in repr(FACTS)


def test_a_ready_file_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PortUnavailable, match=r"ready\.json"):
        ReadyFile(LocalPrivateFiles(tmp_path / "file"), "ready.json").write(FACTS)


def test_after_a_rotation_a_lost_engine_secret_is_noticed_too(files: SimulatedPrivateFiles) -> None:
    ids = CountedIds()
    keep_secrets(files, ids)
    files.replace(HOLDER, b"holder_1\n")
    files.remove(ENGINE_SECRET)
    with pytest.raises(PortFault, match="engine_secret is missing"):
        keep_secrets(files, ids)
    for name in (API_KEY, OPERATOR_TOKEN):
        files.remove(name)
    assert keep_secrets(files, ids).engine_secret, "all secrets are lost: new ones are made"
