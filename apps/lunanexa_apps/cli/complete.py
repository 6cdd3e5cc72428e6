"""Names that a shell may complete, asked of the controller. A shell never hears of a failure: then nothing is
offered."""

import contextlib
import io
from collections.abc import Callable
from typing import Any, Final

import click
from click.shell_completion import CompletionItem

from lunanexa_apps.cli.asking import ask_models, ask_operator, entries
from lunanexa_apps.cli.tools import Tools
from lunanexa_client import AsyncOperator

_WHERE: Final = ("data_dir", "url", "token_file")


def complete_models(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Models that can be called now."""
    models = _quietly(ctx, lambda tools, flags, config: ask_models(tools, flags, config)[0])
    return _begun([model.id for model in models or ()], incomplete)


def complete_workloads(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The newest requests."""
    document = _quietly(ctx, lambda tools, flags, config: ask_operator(tools, flags, config, AsyncOperator.requests)[0])
    listed = [*entries(document, "open"), *entries(document, "ended")]
    return _begun([request.get("workload") for request in listed], incomplete)


def complete_keys(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys in force."""
    keys = _quietly(ctx, lambda tools, flags, config: ask_operator(tools, flags, config, AsyncOperator.api_keys)[0])
    return _begun([key.get("key") for key in keys or ()], incomplete)


def complete_nodes(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The fleet's nodes."""
    nodes = _quietly(ctx, lambda tools, flags, config: ask_operator(tools, flags, config, AsyncOperator.nodes)[0])
    return _begun([node.get("node") for node in nodes or ()], incomplete)


def complete_deployments(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Deployments in force."""
    found = _quietly(ctx, lambda tools, flags, config: ask_operator(tools, flags, config, AsyncOperator.deployments)[0])
    specs = [deployment.get("spec") for deployment in found or ()]
    return _begun([spec.get("deployment") for spec in specs if isinstance(spec, dict)], incomplete)


def _quietly(ctx: click.Context, ask: Callable[[Tools, dict[str, str | None], str | None], Any]) -> Any:
    tools, given = ctx.find_root().obj, ctx.params
    flags = {name: given.get(name) for name in _WHERE}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.suppress(SystemExit):
        return ask(tools, flags, given.get("config"))
    return None


def _begun(names: list[object], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if isinstance(name, str) and name.startswith(incomplete)]
