"""The program ``lunanexa-sim``: its commands, and how it ends."""

from collections.abc import Sequence
from typing import Final

import click

from lunanexa_simulation.cli.listing import list_command
from lunanexa_simulation.cli.processes import processes_command
from lunanexa_simulation.cli.replaying import replay_command
from lunanexa_simulation.cli.running import run_command
from lunanexa_simulation.cli.serve import serve_command
from lunanexa_simulation.cli.shrink import shrink_command
from lunanexa_simulation.cli.swarm import swarm_command
from lunanexa_simulation.cli.tools import INTERRUPTED, Tools
from lunanexa_simulation.cli.workers import worker_command

USAGE: Final = 64
"""sysexits' EX_USAGE. Not click's 2, which says here that liveness was broken."""


@click.group(name="lunanexa-sim", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lunanexa", message="lunanexa-sim %(version)s")
def program() -> None:
    """The fleet in one process, from one seed, on virtual time, or on real time for clients of yours; or as real
    processes.

    Exit codes: 0 everything held, 1 safety broken, 2 liveness broken, 3 a service crashed, 4 not deterministic,
    64 wrong usage.
    """


for _command in (
    *(list_command, run_command, swarm_command, replay_command, shrink_command, serve_command, processes_command),
    worker_command,
):
    program.add_command(_command)


def start(arguments: Sequence[str] | None, tools: Tools) -> int:
    """Runs one command, and returns the exit code."""
    try:
        code = program.main(args=arguments, prog_name="lunanexa-sim", obj=tools, standalone_mode=False)
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return INTERRUPTED
    except BaseExceptionGroup as group:
        if group.subgroup(KeyboardInterrupt) is None:
            raise
        return INTERRUPTED
    return code if isinstance(code, int) else 0
