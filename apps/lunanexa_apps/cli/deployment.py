"""``lunanexa deployment``: what shall be served, by how many replicas, and what a change would do."""

from typing import Final

import click

from lunanexa_apps.cli.asking import ask_operator, print_json
from lunanexa_apps.cli.complete import complete_deployments
from lunanexa_apps.cli.deployment_file import mend_in, read_deployment
from lunanexa_apps.cli.options import JSON, complete_place, operator_options
from lunanexa_apps.cli.target import command_of
from lunanexa_apps.cli.tools import Tools, confirm, fail, wants_color
from lunanexa_client import AsyncOperator
from lunanexa_core.ids import is_identifier
from lunanexa_core.placement.specification import REPLICAS_MAX

_LIST: Final = "deployment list"


def _identifier(_: click.Context, __: click.Parameter, value: str) -> str:
    if not is_identifier(value):
        raise click.BadParameter(f"{value!r} is no deployment's name; lunanexa deployment list shows them")
    return value


_name: Final = click.argument("name", callback=_identifier, shell_complete=complete_deployments)
_file: Final = click.option(
    "-f",
    "--file",
    "path",
    required=True,
    metavar="FILE",
    shell_complete=complete_place,
    help="The deployment, as JSON or TOML; - is standard input.",
)
_generation: Final = click.option(
    "--generation",
    type=click.IntRange(min=0),
    metavar="N",
    help="Only from this generation of the deployment (0: only when new).",
)


@click.group("deployment")
def command() -> None:
    """Plan, apply, list, show, scale and delete deployments."""


@command.command("plan")
@_file
@operator_options
def plan(tools: Tools, /, path: str, config: str | None, output: str, **flags: str | None) -> None:
    """Show what applying a deployment would change, and why which node can't take a replica. It changes nothing."""
    document = read_deployment(path)
    found, _ = ask_operator(
        tools, flags, config, lambda operator: operator.plan_deployment(document), written_as=mend_in(path)
    )
    if output == JSON:
        print_json(found)
        return
    from lunanexa_apps.cli.deployment_page import plan_page
    from lunanexa_apps.cli.pages import page_console

    page_console().print(plan_page(found))


@command.command("apply")
@_file
@_generation
@operator_options
def apply(
    tools: Tools, /, path: str, generation: int | None, config: str | None, output: str, **flags: str | None
) -> None:
    """Create or change a deployment; the same again changes nothing."""
    document = read_deployment(path)
    name = str(document["deployment"])
    found, target = ask_operator(
        tools,
        flags,
        config,
        lambda operator: operator.apply_deployment(name, document, generation=generation),
        listed_by=_LIST,
        written_as=mend_in(path),
    )
    if output == JSON:
        print_json(found)
        return
    click.echo(f"{found['deployment']} is in force, in generation {found['generation']}")
    _note(f"see it come up: {command_of(target, f'deployment show {name}')}")


@command.command("list")
@operator_options
def list_deployments(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """List the deployments in force."""
    if output == JSON:
        print_json({"data": ask_operator(tools, flags, config, AsyncOperator.deployments)[0]})
        return
    found, _ = ask_operator(tools, flags, config, AsyncOperator.status)
    from lunanexa_apps.cli.deployment_page import deployments_page
    from lunanexa_apps.cli.pages import page_console

    page_console().print(deployments_page(found))


@command.command("show")
@_name
@operator_options
def show(tools: Tools, /, name: str, config: str | None, output: str, **flags: str | None) -> None:
    """Show one deployment, its replicas, and why one has no place."""
    found, _ = ask_operator(tools, flags, config, lambda operator: operator.deployment(name), listed_by=_LIST)
    if output == JSON:
        print_json(found)
        return
    from lunanexa_apps.cli.deployment_page import deployment_page
    from lunanexa_apps.cli.pages import page_console

    page_console().print(deployment_page(found))


@command.command("scale")
@_name
@click.argument("replicas", type=click.IntRange(0, REPLICAS_MAX))
@_generation
@operator_options
def scale(
    tools: Tools,
    /,
    name: str,
    replicas: int,
    generation: int | None,
    config: str | None,
    output: str,
    **flags: str | None,
) -> None:
    """Have another number of replicas. Those that stay run on; of those that go, the ones that don't serve go first."""
    found, target = ask_operator(
        tools,
        flags,
        config,
        lambda operator: operator.scale_deployment(name, replicas, generation=generation),
        listed_by=_LIST,
    )
    if output == JSON:
        print_json(found)
        return
    shall = "1 replica" if replicas == 1 else f"{replicas} replicas"
    click.echo(f"{name} shall have {shall}, in generation {found['generation']}")
    _note(f"see it come true: {command_of(target, f'deployment show {name}')}")


@command.command("delete")
@_name
@click.option("--yes", is_flag=True, help="Don't ask.")
@operator_options
def delete(tools: Tools, /, name: str, yes: bool, config: str | None, output: str, **flags: str | None) -> None:
    """Serve it no more: its replicas end what is in progress, and stop."""
    if not yes:
        if output == JSON:
            fail("nobody was asked whether to delete it", hint="repeat it with --yes")
        confirm(f"Delete {name}?")
    found, _ = ask_operator(tools, flags, config, lambda operator: operator.remove_deployment(name), listed_by=_LIST)
    if output == JSON:
        print_json(found)
    else:
        click.echo(f"{name} is deleted")


def _note(text: str) -> None:
    click.echo(click.style("next:  ", bold=True) + text, err=True, color=wants_color())
