"""Files that only a machine's owner may have written."""

import os
from pathlib import Path

import pytest

from lunanexa_adapters.machine.owned_file import BYTES_MAX, read_owned_file
from lunanexa_ports.errors import PortFault

USER = os.geteuid()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "etc" / "policy.toml"
    found.parent.mkdir(mode=0o755)
    found.write_bytes(b"replicas = 1\n")
    found.chmod(0o644)
    return found


def test_the_owners_file_is_read(path: Path) -> None:
    assert read_owned_file(path, USER) == b"replicas = 1\n"
    assert read_owned_file(path.with_name("other"), USER) is None
    assert read_owned_file(path.parent / "no folder" / "other", USER) is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_what_others_could_have_written_or_put_there_is_refused_with_the_command(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(PortFault, match=f"chmod go-w {path}"):
        read_owned_file(path, USER)
    path.chmod(0o644)
    path.parent.chmod(mode | 0o111)
    with pytest.raises(PortFault, match=f"chmod go-w {path.parent}`"):
        read_owned_file(path, USER)
    path.parent.chmod(mode | 0o1111)
    assert read_owned_file(path, USER)


@pytest.mark.skipif(USER != 0, reason="only root gives files away")
def test_what_belongs_to_another_user_is_refused_with_the_command(path: Path) -> None:
    os.chown(path, 12_345, -1)
    assert read_owned_file(path, 12_345)
    with pytest.raises(PortFault, match=f"user 12345: run `chown root {path}`"):
        read_owned_file(path, 54_321)
    os.chown(path, 0, -1)
    assert read_owned_file(path, 54_321)
    os.chown(path.parent, 12_345, -1)
    with pytest.raises(PortFault, match=f"chown root {path.parent}`"):
        read_owned_file(path, 54_321)


def test_what_is_no_file_or_too_long_is_refused(path: Path) -> None:
    path.write_bytes(b"#" * (BYTES_MAX + 1))
    with pytest.raises(PortFault, match="longer than"):
        read_owned_file(path, USER)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PortFault, match="no regular file"):
        read_owned_file(path, USER)
    with pytest.raises(PortFault, match="no regular file"):
        read_owned_file(path.parent, USER)
    (path.parent / "file").write_bytes(b"")
    with pytest.raises(PortFault, match="can't be read"):
        read_owned_file(path.parent / "file" / "under", USER)
