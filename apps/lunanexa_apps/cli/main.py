"""Composition root of the ``lunanexa`` program. Commands and adapters are imported when they are needed:
``lunanexa --help`` starts without a loop, a library for tables or a socket."""

import importlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

if TYPE_CHECKING:
    from lunanexa_adapters.postgres.journal import PostgresJournal
    from lunanexa_apps.cli.tools import BackupTools
    from lunanexa_ports.children import Children
    from lunanexa_ports.http_client import HttpClient
    from lunanexa_ports.ids import IdSource
    from lunanexa_ports.journal import JournalReader
    from lunanexa_ports.private_files import PrivateFiles
    from lunanexa_ports.signing import Signer

T = TypeVar("T")

COMMANDS: Final = {
    "up": ("lunanexa_apps.cli.up", "Serve a model on this machine: controller, node agent and engine."),
    "status": ("lunanexa_apps.cli.status", "Show nodes, deployments, queues, usage and the last requests."),
    "models": ("lunanexa_apps.cli.models", "List the models that can be called now."),
    "invoke": ("lunanexa_apps.cli.invoke", "Ask a model, and stream its answer."),
    "requests": ("lunanexa_apps.cli.requests", "List requests in progress and the last that ended."),
    "explain": ("lunanexa_apps.cli.explain", "Tell why a request went where it went."),
    "node": ("lunanexa_apps.cli.node", "Let nodes in and out of the fleet, and say what they shall do."),
    "trust": ("lunanexa_apps.cli.trust", "Show and rotate what all of the fleet trust."),
    "deployment": ("lunanexa_apps.cli.deployment", "Plan, apply, list, show, scale and delete deployments."),
    "key": ("lunanexa_apps.cli.key", "Make, list, show and revoke API keys."),
    "journal": ("lunanexa_apps.cli.journal", "Verify, follow, show, replay and export journal and ledger."),
    "backup": ("lunanexa_apps.cli.backup", "Make, verify and restore a backup of the store."),
    "recovery": ("lunanexa_apps.cli.recovery", "Look at a store that lost its newest rows, and go on with it."),
    "check-config": ("lunanexa_apps.cli.check_config", "Show the settings in force and where each comes from."),
    "completion": ("lunanexa_apps.cli.shell_completion", "Print the completion script of a shell."),
    "version": ("lunanexa_apps.cli.version", "Show the version."),
}


class LazyGroup(click.Group):
    """Knows its commands by name and summary; a command's module is imported when it is called."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Completion of a shell makes contexts without running :func:`program`, and needs the tools too."""
        from lunanexa_apps.cli.tools import Tools

        tools = Tools(
            run=_run,
            make_http=_make_http,
            make_ids=_make_ids,
            make_children=_make_children,
            make_files=_make_files,
            open_journal=_open_journal,
            make_backup_tools=_make_backup_tools,
        )
        return super().make_context(info_name, args, parent, **{"obj": tools, **extra})

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = importlib.import_module(COMMANDS[cmd_name][0]).command
        assert isinstance(command, click.Command), cmd_name
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """With the nearest name for one that is misspelt, which click looks for among commands that are imported."""
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchCommand as error:
            raise click.NoSuchCommand(error.command_name, possibilities=COMMANDS, ctx=ctx) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, summary) in COMMANDS.items()])


def _run(function: Callable[[], Awaitable[T]]) -> T:
    import trio

    return trio.run(function)


def _make_http() -> "HttpClient":
    from lunanexa_adapters.http_client.http_client import H11HttpClient

    return H11HttpClient()


def _make_ids() -> "IdSource":
    from lunanexa_adapters.system.clock import SystemClock
    from lunanexa_adapters.system.ids import SystemIds

    return SystemIds(SystemClock())


def _make_children() -> "AbstractContextManager[Children]":
    from lunanexa_adapters.children.children import LinuxChildren

    return LinuxChildren()


def _make_files(folder: str) -> "PrivateFiles":
    from pathlib import Path

    from lunanexa_adapters.files.private_files import LocalPrivateFiles

    return LocalPrivateFiles(Path(folder))


def _open_journal(path: str) -> "AbstractAsyncContextManager[JournalReader]":
    from pathlib import Path

    from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader

    return open_sqlite_journal_reader(Path(path))


def _make_backup_tools() -> "BackupTools":
    from pathlib import Path

    from lunanexa_adapters.crypto.signing import Ed25519Verifier
    from lunanexa_adapters.sqlite.journal import open_sqlite_journal
    from lunanexa_adapters.sqlite.journal_reader import open_sqlite_journal_reader
    from lunanexa_adapters.system.clock import SystemClock
    from lunanexa_apps.cli.tools import BackupTools

    return BackupTools(
        clock=SystemClock(),
        verifier=Ed25519Verifier(),
        read_signers=_read_signers,
        read_file=lambda path: open_sqlite_journal_reader(Path(path), live=True),
        read_database=_open_database,
        fill_file=lambda path: open_sqlite_journal(Path(path)),
        fill_database=_open_database,
    )


def _read_signers(folder: str) -> "Sequence[Signer]":
    from pathlib import Path

    from lunanexa_adapters.crypto.fleet_keys import LocalFleetKeys
    from lunanexa_adapters.system.clock import SystemClock

    place = Path(folder)
    # The port would make one where there is none.
    return tuple(LocalFleetKeys(place, SystemClock()).signers().values()) if any(place.glob("signing*.pem")) else ()


def _open_database(url: str) -> "AbstractAsyncContextManager[PostgresJournal]":
    from lunanexa_adapters.postgres.address import parse_address
    from lunanexa_adapters.postgres.journal import open_postgres_journal

    return open_postgres_journal(parse_address(url), accept_lost_tail=True)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="lunanexa", message="lunanexa %(version)s")
def program() -> None:
    """LunaNexa: a governed model service.

    Start with `lunanexa up`, then call it with `lunanexa invoke "Hello"`.
    """


def main() -> None:
    """Entry point of the console script."""
    from lunanexa_apps.cli.tools import fail_unwritten, forgive_output

    forgive_output()
    try:
        program(prog_name="lunanexa", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    except OSError as error:
        fail_unwritten(error)


if __name__ == "__main__":
    main()
