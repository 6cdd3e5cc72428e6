"""``lunanexa models``: what can be called now with this key."""

import attrs
import click
from rich.text import Text

from lunanexa_apps.cli.asking import ask_models, print_json
from lunanexa_apps.cli.options import JSON, config_option, output_option, setting_options
from lunanexa_apps.cli.target import command_of
from lunanexa_apps.cli.tools import Tools


@click.command("models")
@setting_options("data_dir", "url", "token_file", metavar={"data_dir": "DIR", "url": "URL", "token_file": "FILE"})
@config_option
@output_option
@click.pass_obj
def command(tools: Tools, /, config: str | None, output: str, **flags: str | None) -> None:
    """List the models that can be called now, with their context and the dialects that they speak.

    The first call of what is listed is answered; a model that starts or has failed is in `lunanexa status`.
    """
    models, target = ask_models(tools, flags, config)
    if output == JSON:
        print_json({"data": [attrs.asdict(model, recurse=False) for model in models]})
        return
    from lunanexa_apps.cli.cells import cell, table, word
    from lunanexa_apps.cli.pages import page_console

    if not models:
        why = command_of(target, "status")
        page_console().print(Text(f"no model can be called now at {target.url}; {why} says why", "yellow"))
        return
    page = table("MODEL", "STATE", "CONTEXT", "DIALECTS")
    for model in models:
        context = model.meta.get("context_length")
        page.add_row(
            Text(word(model.id), style="bold"),
            cell(model.meta.get("state")),
            Text(f"{context:,} tokens" if isinstance(context, int) else "-"),
            Text(", ".join(map(word, model.meta.get("capabilities") or ()))),
        )
    page_console().print(page)
