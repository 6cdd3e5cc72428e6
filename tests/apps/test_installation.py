"""The data directory: secrets made once, private, and one runner at a time."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from lunanexa_apps.up.installation import (
    Holder,
    InstallationFault,
    UpLock,
    prepare_installation,
    read_address,
    read_installation,
    take_lock,
)
from lunanexa_apps.up.ready_file import ReadyFacts, ReadyFile
from lunanexa_ports.ids import IdSource


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


def mode(path: str) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_secrets_are_made_once_and_private(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "a" / "data")
    first = prepare_installation(data_dir, CountedIds())
    again = prepare_installation(data_dir, CountedIds())
    layout = first.layout
    assert first.fresh
    assert not again.fresh
    assert (first.api_key, first.operator_token) == (again.api_key, again.operator_token)
    assert first.api_key.startswith("lnx_")
    assert len(first.api_key) == 4 + 43
    for path in (layout.api_key, layout.operator_token, layout.node_key, layout.controller_key):
        assert mode(path) == 0o600
    assert mode(data_dir) == 0o700
    assert Path(layout.node_key).read_text() == Path(layout.controller_key).read_text()
    assert first.api_key not in repr(first)
    assert read_installation(data_dir) == again


def test_loose_permissions_are_tightened(tmp_path: Path) -> None:
    layout = prepare_installation(str(tmp_path), CountedIds()).layout
    os.chmod(layout.api_key, 0o644)
    assert prepare_installation(str(tmp_path), CountedIds()).layout == layout
    assert mode(layout.api_key) == 0o600


def test_weak_and_contradicting_secrets_are_refused(tmp_path: Path) -> None:
    layout = prepare_installation(str(tmp_path), CountedIds()).layout
    Path(layout.controller_key).write_text("Z" + Path(layout.node_key).read_text())
    with pytest.raises(InstallationFault, match="differ"):
        prepare_installation(str(tmp_path), CountedIds())
    Path(layout.api_key).write_text("short\n")
    with pytest.raises(InstallationFault, match="shorter than 32 characters") as caught:
        prepare_installation(str(tmp_path), CountedIds())
    assert "short\n" not in str(caught.value)


def test_no_installation(tmp_path: Path) -> None:
    assert read_installation(str(tmp_path)) is None


def test_a_place_that_is_no_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InstallationFault, match="choose another --data-dir"):
        prepare_installation(str(file / "data"), CountedIds())
    with pytest.raises(InstallationFault, match="choose another --data-dir"):
        take_lock(str(file / "data"))


def test_the_address_of_a_controller_that_ran(tmp_path: Path) -> None:
    layout = prepare_installation(str(tmp_path), CountedIds()).layout
    assert read_address(layout) is None
    for text in ("", "[]", '{"host": 1, "port": 2}', '{"host": "h"}'):
        Path(layout.listen).write_text(text)
        assert read_address(layout) is None
    Path(layout.listen).write_text(json.dumps({"host": "127.0.0.1", "port": 9, "base_url": "http://127.0.0.1:9/v1"}))
    assert read_address(layout) == ("127.0.0.1", 9)


def test_one_runner_at_a_time(tmp_path: Path) -> None:
    data_dir = str(tmp_path)
    script = f"from lunanexa_apps.up.installation import take_lock; print(take_lock({data_dir!r}))"
    lock = take_lock(data_dir)
    assert isinstance(lock, UpLock)
    with lock:
        told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
        assert told.strip() == f"process {os.getpid()}"
    again = take_lock(data_dir)
    assert isinstance(again, UpLock)
    again.__exit__(None, None, None)
    assert str(Holder(None)) == "another process"


FACTS = ReadyFacts(
    base_url="http://127.0.0.1:8400/v1",
    api_key="lnx_a",
    operator_token="o",
    model="m",
    pids={"controller": 1, "node": 2, "engine": None},
)


def test_the_ready_file(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.write_text("left by a predecessor")
    ready = ReadyFile(str(path))
    ready.remove()
    ready.remove()
    assert not path.exists()
    ready.write(FACTS)
    assert mode(str(path)) == 0o600
    assert json.loads(path.read_text()) == {
        "base_url": "http://127.0.0.1:8400/v1",
        "api_key": "lnx_a",
        "operator_token": "o",
        "model": "m",
        "pids": {"controller": 1, "node": 2, "engine": None},
    }
    inode = path.stat().st_ino
    ready.write(FACTS)
    assert path.stat().st_ino == inode
    assert [entry.name for entry in tmp_path.iterdir()] == ["ready.json"]
    assert "lnx_a" not in repr(FACTS)


def test_no_ready_file_was_asked_for() -> None:
    ready = ReadyFile(None)
    ready.write(FACTS)
    ready.remove()


def test_a_ready_file_that_can_not_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        ReadyFile(str(tmp_path / "no" / "where")).write(FACTS)
