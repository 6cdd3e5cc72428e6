"""Becomes the engine, after it has written down who it is.

The agent runs this file in a fresh interpreter (``python -I -S -E launcher.py INTENT START DIRECTORY
KEEP_LC_CTYPE ARGV...``, descriptor 3 a pipe to the agent). It makes a session of its own, writes its identity
into the intent's file, syncs it, and only then becomes the engine: an intent that shows no identity never
started one, whenever the agent died. It imports the standard library only, and little of it, because every
start of an engine waits for it.

The file is locked from the moment that it is read until this program is another. An agent that finds an
intent without identity revokes it under the same lock: a launcher that comes late finds no file, or one
that says so.
"""

import fcntl
import os
import signal
import sys

PENDING = b'{"pending":true}\n'
STATUS_FD = 3
NOT_STARTED = 127


def main(arguments: list[str]) -> None:
    intent, start, directory, keep_lc_ctype, *argv = arguments
    os.setsid()
    os.set_inheritable(STATUS_FD, False)
    try:
        record(intent, start)
        prepare(directory)
        environment = dict(os.environ)
        # An interpreter in the C locale adds this variable to its own environment (PEP 538).
        if keep_lc_ctype == "no":
            environment.pop("LC_CTYPE", None)
        os.execve(argv[0], argv, environment)
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        tell(f"{error.strerror or error}{place}")
    sys.exit(NOT_STARTED)


def tell(problem: str) -> None:
    try:
        os.write(STATUS_FD, problem.encode())
    except BrokenPipeError:
        return  # The agent is gone; the next one reads the record.


def record(intent: str, start: str) -> None:
    """Writes this process's identity into the intent's file, which stays open, and locked, until the exec."""
    descriptor = os.open(intent, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    if os.pread(descriptor, len(PENDING) + 1, 0) != PENDING:
        raise OSError("the start was revoked")
    with open("/proc/self/stat", "rb") as file:
        ticks = file.read().rpartition(b")")[2].split()[19].decode()
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        boot = file.read().strip()
    text = f'{{"boot":"{boot}","pid":{os.getpid()},"start":"{start}","start_ticks":{ticks}}}\n'
    os.pwrite(descriptor, text.encode(), 0)
    os.ftruncate(descriptor, len(text.encode()))
    os.fsync(descriptor)


def prepare(directory: str) -> None:
    """Nothing of this interpreter or of the agent goes on into the engine: no signal settings, no descriptors."""
    os.chdir(directory)
    os.umask(0o077)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The interpreter ignores SIGPIPE and SIGXFSZ, and what is ignored stays so over an exec.
        if signal.getsignal(number) is not signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in os.listdir("/proc/self/fd"):
        if int(name) > STATUS_FD:
            try:
                os.set_inheritable(int(name), False)
            except OSError:
                continue  # The descriptor of this very listing.


if __name__ == "__main__":
    main(sys.argv[1:])
