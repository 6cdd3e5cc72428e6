"""The store and the key of an installation, for a command that reads or fills them itself."""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Literal, overload

from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, EXIT_UNAVAILABLE, BackupTools, Tools, demand_file, fail
from lunanexa_apps.installation import CONTROLLER_LOCK, SECRETS, STORE
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_core.events import UnknownEvent
from lunanexa_ports.errors import PortError, PortFault
from lunanexa_ports.journal import JournalReader
from lunanexa_ports.journal_upkeep import JournalUpkeep
from lunanexa_ports.private_files import LockHeld
from lunanexa_ports.signing import Signer


@contextmanager
def exit_for(name: str) -> Iterator[None]:
    """Ends the program with what a person can do about what the block raises. ``name``: the backup's file."""
    try:
        yield
    except FileExistsError:
        fail(f"{name} is there already", hint="name another file, or replace it: --force")
    except OSError as error:
        fail(f"{name}: {error.strerror or error}", hint="see that the folder is there, may be written and has room")
    except UnknownEvent as error:
        fail(str(error), exit_code=EXIT_CONFIG)
    except PortError as error:
        fail(str(error), exit_code=EXIT_CONFIG if isinstance(error, PortFault) else EXIT_UNAVAILABLE)


@contextmanager
def held_lock(tools: Tools, settings: CommandSettings, holder: str) -> Iterator[None]:
    """Keeps every controller out of the data directory. Ends the program when one is in it."""
    lock = tools.make_files(settings.data_dir).lock(CONTROLLER_LOCK, holder)
    if isinstance(lock, LockHeld):
        fail(
            f"{settings.data_dir} is in use: {lock.holder}",
            hint="stop that controller first, or name another place: --data-dir DIR",
            exit_code=EXIT_HELD,
        )
    with lock:
        yield


@overload
def signer_of(tools: Tools, needed: BackupTools, settings: CommandSettings) -> Signer: ...


@overload
def signer_of(
    tools: Tools, needed: BackupTools, settings: CommandSettings, *, required: Literal[False]
) -> Signer | None: ...


def signer_of(tools: Tools, needed: BackupTools, settings: CommandSettings, *, required: bool = True) -> Signer | None:
    """The installation's newest key. Without one the program ends, or the answer is ``None``. Raises as the port
    does."""
    folder = tools.make_files(settings.data_dir).place(SECRETS)
    signers = needed.read_signers(folder)
    if signers:
        return signers[-1]
    if required:
        fail(
            f"no installation in {settings.data_dir}: there is no signing key in {folder}",
            hint="name the controller's data directory: --data-dir DIR",
            exit_code=EXIT_UNAVAILABLE,
        )
    return None


def store_reader(
    tools: Tools, needed: BackupTools, settings: CommandSettings
) -> AbstractAsyncContextManager[JournalReader]:
    """The installation's store; a controller may have it open. Ends the program when there is no file."""
    if settings.store is not None:
        return needed.read_database(settings.store.value)
    path = tools.make_files(settings.data_dir).place(STORE)
    demand_file(path, "store", hint="name the place: --data-dir DIR, or --store URL")
    return needed.read_file(path)


def store_upkeep(tools: Tools, settings: CommandSettings) -> AbstractAsyncContextManager[JournalUpkeep]:
    """The place that is filled; a file is made where there is none."""
    needed = tools.make_backup_tools()
    if settings.store is not None:
        return needed.fill_database(settings.store.value)
    return needed.fill_file(tools.make_files(settings.data_dir).place(STORE))
