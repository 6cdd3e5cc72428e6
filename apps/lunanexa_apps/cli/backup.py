"""``lunanexa backup``: makes, verifies and restores backups. It reads and fills the store itself, so that a controller
need not run, and may."""

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Final

import click

from lunanexa_apps.backup.bundle import new_bundle
from lunanexa_apps.backup.create import create_backup
from lunanexa_apps.backup.manifest import Manifest, summary
from lunanexa_apps.backup.restore import restore_backup, why_not_until
from lunanexa_apps.backup.verify import Verified, verify_backup
from lunanexa_apps.cli.asking import print_json
from lunanexa_apps.cli.backup_page import manifest_page, verified_page
from lunanexa_apps.cli.backup_store import exit_for, held_lock, signer_of, store_reader, store_upkeep
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options, settings_or_exit
from lunanexa_apps.cli.tools import EXIT_HELD, Tools, fail, write_failure
from lunanexa_apps.up.configuration import CommandSettings
from lunanexa_core.journal import Head

_HEX: Final = frozenset("0123456789abcdef")
_SOUND: Final = "keep this file as it is, and take an older backup"


def _common(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    metavar = {"data_dir": "DIR", "store": "URL"}

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        return setting_options(*names, metavar=metavar)(config_option(output_option(click.pass_obj(function))))

    return add


def _public_key(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and (len(value) != 64 or not _HEX.issuperset(value)):
        raise click.BadParameter("a public key is 64 hexadecimal digits; lunanexa backup verify shows whose it is")
    return value


_key_option = click.option(
    "--key", metavar="PUBLIC", callback=_public_key, help="The public key that must have signed it (hexadecimal)."
)


@click.group("backup")
def command() -> None:
    """Make, verify and restore a backup of journal and ledger."""


@command.command("create")
@click.option("--out", required=True, type=click.Path(dir_okay=False), metavar="FILE", help="The file to make.")
@click.option("--force", is_flag=True, help="Replace FILE if it is there, once the new one is whole.")
@_common("data_dir", "store")
def create(tools: Tools, /, out: str, force: bool, config: str | None, output: str, **flags: str | None) -> None:
    """Write all rows up to now to one signed FILE. A controller may run meanwhile."""
    settings = settings_or_exit(flags, config).settings
    needed = tools.make_backup_tools()
    with exit_for(out), new_bundle(out, force=force) as file:
        signer = signer_of(tools, needed, settings)

        reader = store_reader(tools, needed, settings)

        async def work() -> Manifest:
            async with reader as journal:
                return await create_backup(
                    journal,
                    file,
                    signer,
                    wall_ms=needed.clock.now().wall_ms,
                    version=version("lunanexa"),
                    progress=_tell,
                )

        manifest = tools.run(work)
    if output == JSON:
        print_json({"file": out, "key_id": signer.key_id, "public_key": signer.public_key, **summary(manifest)})
    else:
        click.echo(manifest_page(manifest))
        click.echo(f"signed   {signer.key_id} ({signer.public_key})\n{out} is written")


@command.command("verify")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@_key_option
@_common("data_dir")
def verify(
    tools: Tools, /, file: IO[bytes], key: str | None, config: str | None, output: str, **flags: str | None
) -> None:
    """Verify FILE: digests, signature, both chains, and the state that its rows make. Status 1 names what is wrong.

    The key that must have signed it is --key, or that of the installation in --data-dir; without either the key that
    the file names counts, which proves that the file is whole and not who made it."""
    settings = settings_or_exit(flags, config).settings if key is None and flags["data_dir"] else None
    with exit_for(file.name):
        found = _verified(tools, file, key, settings)
    if output == JSON:
        print_json(found.document())
    elif found.manifest is not None:
        click.echo(verified_page(found))
    if not found.ok:
        _fail_damaged(found, file.name)
    if output != JSON:
        click.echo("the backup is whole")


@command.command("restore")
@click.argument("file", type=click.File("rb"), metavar="FILE")
@click.option("--until", type=click.IntRange(1, 10**15 - 1), metavar="SEQUENCE", help="Rows up to that one, not all.")
@_key_option
@_common("data_dir", "store")
def restore(
    tools: Tools,
    /,
    file: IO[bytes],
    until: int | None,
    key: str | None,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Verify FILE, then fill an empty store from it. The controller that starts next recovers: it changes nothing until
    you say `lunanexa recovery rebase`."""
    settings = settings_or_exit(flags, config).settings
    with exit_for(file.name), held_lock(tools, settings, "lunanexa backup restore"):
        found = _verified(tools, file, key, settings)
        if not found.ok or found.manifest is None:
            _fail_damaged(found, file.name)
            return
        last = found.manifest.head.sequence if until is None else until
        refused = why_not_until(found.manifest, last)
        if refused is not None:
            fail(refused)
        head = tools.run(partial(_fill, tools, settings, file, found.manifest, last))
    if head is None:
        fail(
            "the store is not empty, and nothing was changed",
            hint="move the old one away (docs/operations/recovery.md), or name another: --data-dir DIR, --store URL",
            exit_code=EXIT_HELD,
        )
    if output == JSON:
        print_json({"sequence": last, "epoch": head.epoch, "next": "lunanexa recovery plan"})
        return
    click.echo(verified_page(found))
    click.echo(
        f"rows up to {last} are restored\n"
        "next:  start the controller; it serves nothing yet. Then look at `lunanexa recovery plan`,\n"
        "       and when it is right say `lunanexa recovery rebase`"
    )


def _verified(tools: Tools, file: IO[bytes], key: str | None, settings: CommandSettings | None) -> Verified:
    """With the key that was given, or else that of the installation in the data directory, if there is one."""
    needed = tools.make_backup_tools()
    if key is None and settings is not None:
        signer = signer_of(tools, needed, settings, required=False)
        key = None if signer is None else signer.public_key
    return verify_backup(file, needed.verifier, public_key=key, version=version("lunanexa"), progress=_tell)


async def _fill(
    tools: Tools, settings: CommandSettings, file: IO[bytes], manifest: Manifest, until: int
) -> Head | None:
    wall_ms = tools.make_backup_tools().clock.now().wall_ms
    async with store_upkeep(tools, settings) as store:
        return await restore_backup(file, manifest, store, until=until, wall_ms=wall_ms, progress=_tell)


def _fail_damaged(found: Verified, name: str) -> None:
    first, *others = found.problems
    write_failure(f"{Path(name).name}: {first}", details=tuple(others), hint=_SOUND)
    raise SystemExit(1)


def _tell(sequence: int, last: int) -> None:
    click.echo(f"{sequence:,} rows of {last:,}", err=True)
