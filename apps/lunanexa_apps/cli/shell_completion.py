"""``lunanexa completion SHELL``: the script that lets a shell complete commands, options and model names."""

import click
from click.shell_completion import get_completion_class

from lunanexa_apps.cli.tools import fail

VARIABLE = "_LUNANEXA_COMPLETE"
_INSTALL = {
    "bash": 'eval "$(lunanexa completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(lunanexa completion zsh)"    # in ~/.zshrc',
    "fish": "lunanexa completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command("completion", epilog="\b\n" + "\n".join(_INSTALL.values()))
@click.argument("shell", type=click.Choice(list(_INSTALL)))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell."""
    kind = get_completion_class(shell)
    assert kind is not None, shell
    try:
        script = kind(ctx.find_root().command, {}, "lunanexa", VARIABLE).source()
    except RuntimeError as error:
        fail(str(error))
    click.echo(script)
