"""``lunanexa`` in the hands of somebody who errs: what is wrong is named, with the command that comes next."""

import json
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from lunanexa_adapters.files.private_files import LocalPrivateFiles
from lunanexa_apps.cli import deployment, models, node, recovery, status
from lunanexa_apps.installation import NODE_IDENTITY, prepare_installation
from lunanexa_core.outcomes import Outcome
from lunanexa_ports.http_client import HttpBroken, HttpRequest
from tests.apps.scripted_http import Reply
from tests.apps.test_cli import REMOTE, call, refuse
from tests.apps.test_cli_backup import PLAN
from tests.apps.test_installation import CountedIds


def untouched(request: HttpRequest) -> Reply:
    """A controller of which nothing may be changed."""
    assert request.method == "GET"
    return Reply(200, [json.dumps(PLAN).encode()])


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (node.command, ("revoke", "gpu-1")),
        (node.command, ("retire", "gpu-1")),
        (deployment.command, ("delete", "tiny")),
        (recovery.command, ("rebase",)),
    ],
)
def test_a_question_that_nobody_can_answer_names_the_option_without_it(
    command: click.Command, arguments: Sequence[str]
) -> None:
    nobody = call(command, *arguments, server=untouched, environment=REMOTE, stdin="")
    assert nobody.exit_code == 1
    assert "nobody answers, and nothing was changed" in nobody.stderr
    assert "--yes" in nobody.stderr
    refused = call(command, *arguments, server=untouched, environment=REMOTE, stdin="n\n")
    assert refused.exit_code != 0
    assert "nothing was changed" in refused.stderr


def test_the_directory_of_a_node_is_told_from_none(tmp_path: Path) -> None:
    files = LocalPrivateFiles(tmp_path)
    assert "only a node" not in call(status.command, "--data-dir", str(tmp_path)).stderr
    files.replace(NODE_IDENTITY, b"")
    result = call(status.command, "--data-dir", str(tmp_path))
    assert result.exit_code == 69
    assert f"no installation in {tmp_path}, only a node" in result.stderr
    assert f"lunanexa-node doctor --data-dir {tmp_path}" in result.stderr


def test_what_starts_again_is_a_command_to_be_pasted(tmp_path: Path) -> None:
    prepare_installation(LocalPrivateFiles(tmp_path), CountedIds())
    told = call(status.command, "--data-dir", str(tmp_path)).stderr
    assert f"lunanexa up --data-dir {tmp_path}; in a fleet: lunanexa-controller --data-dir {tmp_path}" in told


def test_a_listener_that_speaks_no_http_is_named_as_such() -> None:
    def hung_up(_: HttpRequest) -> Reply:
        raise HttpBroken("the connection ended before a response head (role=SERVER)", head_seen=False)

    result = call(status.command, server=hung_up, environment=REMOTE)
    assert result.exit_code == 69
    assert "gave no HTTP answer; nodes' listeners are for nodes alone" in result.stderr
    assert "role=SERVER" not in result.stderr
    assert "check LUNANEXA_URL" in result.stderr


def test_a_hint_names_the_same_installation(tmp_path: Path) -> None:
    prepare_installation(LocalPrivateFiles(tmp_path), CountedIds())
    none = call(models.command, "--data-dir", str(tmp_path), server=lambda _: Reply(200, [b'{"data": []}']))
    assert f"lunanexa status --data-dir {tmp_path} says why" in " ".join(none.stdout.split())


@pytest.mark.parametrize("verb", ["plan", "apply"])
def test_a_document_that_is_refused_is_mended_where_it_stands(tmp_path: Path, verb: str) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text('deployment = "tiny"\nreplcas = 2\n')
    server = refuse(Outcome.INVALID_REQUEST, "replcas: is no known member.")
    result = call(deployment.command, verb, "-f", str(path), server=server, environment=REMOTE)
    assert result.stderr.startswith("error: replcas: is no known member.\nnext:  mend ")
    assert f"mend {path}, and repeat the command" in result.stderr


def test_two_controllers_named_side_by_side_are_refused(tmp_path: Path) -> None:
    prepare_installation(LocalPrivateFiles(tmp_path), CountedIds())
    both = call(status.command, "--data-dir", str(tmp_path), "--url", "http://box:8400")
    assert both.exit_code == 2
    assert "--data-dir and --url each name a controller" in both.stderr
