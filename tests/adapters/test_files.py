"""Files that are whole or absent, and the lock of a data directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lunanexa_adapters.files.atomic import create_atomic, remove_durably, write_atomic
from lunanexa_adapters.files.lock import FileLock, hold_lock
from lunanexa_adapters.files.mounts import file_system_type, network_type
from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_ports.errors import PortFault, PortUnavailable
from lunanexa_ports.private_files import FILE_BYTES_MAX, LockHeld


def names(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_write_replaces_wholly_and_leaves_nothing_beside(tmp_path: Path) -> None:
    path = tmp_path / "new" / "secret"
    write_atomic(path, b"first, and longer")
    write_atomic(path, b"second")
    assert path.read_bytes() == b"second"
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert names(path.parent) == ["secret"]


def test_write_sets_the_mode_of_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.touch(0o600)
    write_atomic(path, b"{}", mode=0o644)
    assert path.stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_what_was(tmp_path: Path) -> None:
    path = tmp_path / "taken"
    path.mkdir()
    (path / "file").touch()
    with pytest.raises(PortUnavailable):
        write_atomic(path, b"data")
    assert names(tmp_path) == ["taken"]
    assert names(path) == ["file"]
    with pytest.raises(PortUnavailable):
        write_atomic(path / "file" / "below", b"data")


def test_create_keeps_the_first(tmp_path: Path) -> None:
    path = tmp_path / "key"
    assert create_atomic(path, b"first")
    assert not create_atomic(path, b"second")
    assert path.read_bytes() == b"first"
    assert names(tmp_path) == ["key"]


def test_remove_twice_is_once(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    path.touch()
    remove_durably(path)
    remove_durably(path)
    remove_durably(tmp_path / "no" / "folder")
    assert names(tmp_path) == []


def test_a_private_file_that_others_could_read_becomes_its_owners(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"data")
    path.chmod(0o644)
    assert LocalPrivateFiles(tmp_path).read("secret") == b"data"
    assert path.stat().st_mode & 0o777 == 0o600


def test_private_files_that_are_none(tmp_path: Path) -> None:
    """None of them keeps a reader waiting or takes its memory."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "long").write_bytes(bytes(FILE_BYTES_MAX + 1))
    files = LocalPrivateFiles(tmp_path)
    for name in ("pipe", "folder", "long"):
        with pytest.raises(PortFault, match=f"{tmp_path / name} .*: move it away"):
            files.read(name)


@pytest.mark.parametrize("name", ["", ".", "../secret", "a/../../secret", "/etc/passwd"])
def test_a_name_never_leaves_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(AssertionError):
        LocalPrivateFiles(tmp_path / "data").read(name)


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "data" / "lock"
    held = hold_lock(path, "lunanexa-controller (pid 1)")
    assert isinstance(held, FileLock)
    assert path.stat().st_mode & 0o777 == 0o600
    assert hold_lock(path, "another") == LockHeld("lunanexa-controller (pid 1)")
    held.release()
    held.release()
    again = hold_lock(path, "another")
    assert isinstance(again, FileLock)
    with again:
        assert hold_lock(path, "a third") == LockHeld("another")
    with pytest.raises(PortUnavailable):
        hold_lock(path / "below", "anybody")


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    """Also with one that is killed; its text stays, and says nothing once the lock is free."""
    path = tmp_path / "lock"
    program = (
        "import sys, pathlib; from lunanexa_adapters.files.lock import describe_holder, hold_lock;"
        "held = hold_lock(pathlib.Path(sys.argv[1]), describe_holder('lunanexa-node', 0));"
        "print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert hold_lock(path, "me") == LockHeld(f"lunanexa-node (pid {process.pid}, started 1970-01-01 00:00:00 UTC)")
        process.kill()
    assert process.returncode == -9
    held = hold_lock(path, "me")
    assert isinstance(held, FileLock)
    held.release()


MOUNTS = r"""22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 27 0:40 / /srv rw - nfs4 server:/srv rw,vers=4.2
31 30 0:41 / /srv/local rw - xfs /dev/vdb rw
32 27 0:42 / /home/my\040share rw - cifs //server/share rw
33 27 0:43 / /over rw - ext4 /dev/vdc rw
34 27 0:44 / /over rw - fuse.sshfs me@server: rw
35 27 0:45 / /vault rw - fuse.gocryptfs /enc rw
a line that is none
"""


@pytest.mark.parametrize(
    ("path", "kind", "network"),
    [
        ("/var/lib/lunanexa", "ext4", False),
        ("/srv", "nfs4", True),
        ("/srv/data/lunanexa", "nfs4", True),
        ("/srv/local/lunanexa", "xfs", False),
        ("/srvx", "ext4", False),
        ("/home/my share/data", "cifs", True),
        ("/over/data", "fuse.sshfs", True),
        ("/vault/data", "fuse.gocryptfs", False),
    ],
)
def test_the_mount_table(tmp_path: Path, path: str, kind: str, network: bool) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTS)
    assert file_system_type(Path(path), MOUNTS) == kind
    assert network_type(Path(path), table) == (kind if network else None)


def test_a_table_that_says_nothing(tmp_path: Path) -> None:
    assert file_system_type(Path("/var"), "") is None
    assert network_type(Path("/var"), tmp_path / "missing") is None
    assert network_type(tmp_path) is None


def test_no_lock_on_a_network_file_system(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(f"27 1 0:40 / / rw - ext4 /dev/vda rw\n30 27 0:41 / {tmp_path} rw - nfs4 server:/ rw\n")
    with pytest.raises(PortFault, match="nfs4"):
        hold_lock(tmp_path / "data" / "lock", "me", mounts=table)
    assert not (tmp_path / "data" / "lock").exists()
