"""``lunanexa trust``: the fleet's certificate authorities and signing keys."""

import os
from functools import partial

import click

from lunanexa_apps.cli.asking import OPERATOR_TOKEN, ask_operator, print_json, use_client
from lunanexa_apps.cli.drain_watch import EXIT_INTERRUPTED, EXIT_LATER
from lunanexa_apps.cli.key import DurationMs
from lunanexa_apps.cli.options import JSON, operator_options, settings_or_exit
from lunanexa_apps.cli.target import Target, command_of, fail_with, find_target
from lunanexa_apps.cli.tools import Tools, fail, write_failure
from lunanexa_apps.cli.trust_watch import awaited, is_stable, watch
from lunanexa_client import AsyncClient, AsyncOperator, Document, LunaNexaError
from lunanexa_ports.errors import PortError


@click.group("trust")
def command() -> None:
    """Show and rotate what all of the fleet trust: certificate authorities, and the keys that sign documents."""


@command.command("show")
@operator_options
def show(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """Show authorities and signing keys, and how far a rotation is."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.trust)
    if output == JSON:
        print_json(found)
        return
    from lunanexa_apps.cli.pages import page_console
    from lunanexa_apps.cli.trust_page import trust_page

    page_console().print(trust_page(found))


@command.command("rotate")
@click.option(
    "--timeout", "timeout_ms", type=DurationMs(), metavar="TIME", help="Wait so long at most, such as 90s or 15m."
)
@click.option("--no-wait", is_flag=True, help="Return once it is begun.")
@operator_options
def rotate(
    tools: Tools,
    /,
    timeout_ms: int | None,
    no_wait: bool,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Exchange authority and signing key for new ones, while everything serves.

    It shows how far it is, and returns when nobody trusts the old ones any more. Ctrl-C ends the waiting, not the
    rotation; called again while one is under way, it waits for that one.
    """
    target = find_target(tools, settings_or_exit(flags, config))
    tell = (lambda _: None) if output == JSON else click.echo

    async def work(client: AsyncClient) -> Document:
        first = await client.operator.rotate_trust()
        return first if no_wait else await watch(client.operator, first, timeout_ms=timeout_ms, tell=tell)

    try:
        found = tools.run(partial(use_client, tools, target.operator_settings(), work))
    except KeyboardInterrupt:
        write_failure("interrupted; the rotation goes on if it was begun", hint=_later(target, ()))
        raise SystemExit(EXIT_INTERRUPTED) from None
    if isinstance(found, LunaNexaError):
        fail_with(target, found, token_name=OPERATOR_TOKEN)
    if output == JSON:
        print_json(found)
    if is_stable(found):
        tell("rotated: nobody trusts the old ones any more")
    elif no_wait:
        tell(f"the rotation is begun, and goes on by itself; {_later(target, awaited(found))}")
    else:
        fail("the rotation is not over yet; it goes on", hint=_later(target, awaited(found)), exit_code=EXIT_LATER)


@command.command("crl")
@click.option("--out", type=click.Path(dir_okay=False), metavar="FILE", help="Write it there instead.")
@operator_options
def crl(tools: Tools, /, out: str | None, config: str | None, output: str, **flags: str | None) -> None:
    """Print the signed lists of revoked certificates (CRL, PEM), for others than LunaNexa itself."""
    found, _ = ask_operator(tools, flags, config, AsyncOperator.revocation_list)
    if out is not None:
        folder, file = os.path.split(os.path.abspath(out))
        try:
            tools.make_files(folder).replace(file, found.encode())
        except PortError as error:
            fail(str(error))
    if output == JSON:
        print_json({"crl": found} if out is None else {"file": out})
    else:
        click.echo(found if out is None else f"the lists are in {out}", nl=out is not None)


def _later(target: Target, names: tuple[str, ...]) -> str:
    told = f"see how far it is: {command_of(target, 'trust show')}"
    if names:
        revoke = command_of(target, f"node revoke {names[0]}")
        told += f"; bring {' and '.join(names)} back, or shut out: {revoke}"
    return told
