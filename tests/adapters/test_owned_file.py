"""Files that nobody else may have read, or written."""

import os
from pathlib import Path

import pytest

from lunanexa_adapters.files.owned_file import KEY, SECRET, OwnerRule, read_owned_file, word_of
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.private_files import FILE_BYTES_MAX

USER = os.geteuid()
WORD = word_of(USER)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "etc" / "policy.toml"
    found.parent.mkdir(mode=0o755)
    found.write_bytes(b"replicas = 1\n")
    found.chmod(0o644)
    return found


def test_the_owners_file_is_read(path: Path) -> None:
    assert read_owned_file(path, WORD) == b"replicas = 1\n"
    assert read_owned_file(path.with_name("other"), WORD) is None
    assert read_owned_file(path.parent / "no folder" / "other", WORD) is None


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o666])
def test_what_others_could_have_written_or_put_there_is_refused_with_the_command(path: Path, mode: int) -> None:
    path.chmod(mode)
    with pytest.raises(PortFault, match=f"chmod go-w {path}"):
        read_owned_file(path, WORD)
    path.chmod(0o644)
    path.parent.chmod(mode | 0o111)
    with pytest.raises(PortFault, match=f"chmod go-w {path.parent}`"):
        read_owned_file(path, WORD)
    path.parent.chmod(mode | 0o1111)
    assert read_owned_file(path, WORD)


@pytest.mark.skipif(USER != 0, reason="only root gives files away")
def test_what_belongs_to_another_user_is_refused_with_the_command(path: Path) -> None:
    os.chown(path, 12_345, -1)
    assert read_owned_file(path, word_of(12_345))
    with pytest.raises(PortFault, match=rf"another user's \(12345\): run `chown root {path}`"):
        read_owned_file(path, word_of(54_321))
    os.chown(path, 0, -1)
    assert read_owned_file(path, word_of(54_321))
    os.chown(path.parent, 12_345, -1)
    with pytest.raises(PortFault, match=f"chown root {path.parent}`"):
        read_owned_file(path, word_of(54_321))


@pytest.mark.parametrize("rule", [WORD, KEY, SECRET], ids=["word", "key", "secret"])
def test_what_is_no_file_or_too_long_is_refused(path: Path, rule: OwnerRule) -> None:
    path.chmod(0o600)
    assert read_owned_file(path, rule) == b"replicas = 1\n"
    path.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(PortFault, match="longer than"):
        read_owned_file(path, rule)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(PortFault, match="no regular file"):
        read_owned_file(path, rule)
    with pytest.raises(PortFault, match="no regular file"):
        read_owned_file(path.parent, rule)
    (path.parent / "file").write_bytes(b"")
    with pytest.raises(PortFault if rule is WORD else PortUnavailable, match="can't be read"):
        read_owned_file(path.parent / "file" / "under", rule)


def test_what_others_may_read_is_refused_as_a_key_and_closed_as_a_secret(path: Path) -> None:
    path.chmod(0o640)
    with pytest.raises(PortFault, match=f"chmod 600 {path}"):
        read_owned_file(path, KEY)
    assert path.stat().st_mode & 0o777 == 0o640
    assert read_owned_file(path, SECRET) == read_owned_file(path, KEY) == b"replicas = 1\n"
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(USER != 0, reason="only root gives files away")
def test_a_key_is_this_users(path: Path) -> None:
    path.chmod(0o600)
    os.chown(path, 12_345, -1)
    assert read_owned_file(path, SECRET)
    with pytest.raises(PortFault, match=rf"another user's \(12345\): run `chown {USER} {path}`"):
        read_owned_file(path, KEY)
