"""``make-bundle`` and ``run --air-gapped`` as a person uses them: what is written, and what is refused with a fix."""

import json
from pathlib import Path
from typing import Any

import pytest

from lunanexa_adapters.files.bundle_files import read_whole_bundle
from lunanexa_apps.codec import decode
from lunanexa_apps.node.main import main
from lunanexa_core.southbound.bundle import Bundle, blob_path

WRITTEN: dict[str, Any] = {
    "cluster": "plant-7",
    "node": "edge-1",
    "data_dir": "/srv/node",
    "deployments": [
        {"deployment": "chat", "engine": {"driver": "reference", "served_name": "chat", "binary": "/opt/engine"}},
        {
            "deployment": "tiny",
            "engine": {
                "driver": "reference",
                "served_name": "tiny",
                "binary": "blob:engine",
                "model_path": "blob:weights",
                "arguments": ["--corpus", "blob:weights"],
            },
        },
    ],
}


def adopting(**engine: str) -> dict[str, Any]:
    return {"deployment": "a", "engine": {"driver": "vllm", "served_name": "a", **engine}}


class Desk:
    """An operator's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("engine", "weights"):
            (folder / name).write_text(name)
        self.write(WRITTEN)

    def write(self, document: object) -> None:
        (self.folder / "document.json").write_text(json.dumps(document))

    def make(self, out: str, *options: str) -> int:
        blobs = [word for name in ("engine", "weights") for word in ("--blob", str(self.folder / name))]
        key, document = str(self.folder / "key.pem"), str(self.folder / "document.json")
        files = ("--key", key, "--document", document, "--out", str(self.folder / out))
        return run("make-bundle", *files, *blobs, *options)

    def bundle(self, name: str) -> Bundle:
        document = read_whole_bundle(self.folder / name)
        assert document is not None
        return decode(Bundle, document.payload)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    code = ended.value.code
    return code if isinstance(code, int) else 0


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_what_is_written_again_goes_on_and_what_differs_is_new(desk: Desk) -> None:
    assert desk.make("1", "--new-key") == 0
    first = desk.bundle("1")
    assert (first.generation, first.predecessor, first.baseline) == (1, None, True)
    hashes = {blob.size_bytes: f"/srv/node/node/{blob_path(blob.sha256)}" for blob in first.blobs}
    tiny = first.document.assignments[1].engine
    assert (tiny.binary, tiny.model_path) == (hashes[len("engine")], hashes[len("weights")])
    assert tiny.arguments == ("--corpus", hashes[len("weights")])
    (desk.folder / "weights").write_text("other weights")
    assert desk.make("2", "--after", str(desk.folder / "1")) == 0
    second = desk.bundle("2")
    assert (second.generation, second.predecessor, second.baseline) == (2, 1, False)
    assert [one.generation for one in second.document.assignments] == [1, 2]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"nodes": []}, "$.nodes"),
        ({"node": "edge 1"}, "node must be"),
        ({"deployments": [WRITTEN["deployments"][0]] * 2}, "a name of its own"),
        ({"deployments": [adopting(binary="blob:no")]}, "blob:no"),
        ({"deployments": [adopting(url="http://10.0.0.1")]}, "another machine"),
    ],
)
def test_what_is_written_wrong_is_named(
    desk: Desk, change: dict[str, Any], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    desk.write({**WRITTEN, **change})
    assert desk.make("1", "--new-key") == 78
    assert named in capsys.readouterr().err
    assert not (desk.folder / "1").exists()


def test_a_key_is_made_only_when_it_is_asked_for(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.make("1") == 78
    assert "--new-key" in capsys.readouterr().err
    assert not (desk.folder / "key.pem").exists()


def test_a_bundle_of_another_authority_is_no_predecessor(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert desk.make("1", "--new-key") == 0
    (desk.folder / "key.pem").unlink()
    assert desk.make("2", "--new-key", "--after", str(desk.folder / "1")) == 78
    assert "not signed by --key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("policy", "options", "status", "named"),
    [
        ("replicas = 3\n", ("--air-gapped", "--inbox", "i", "--outbox", "o"), 78, "names no authority"),
        (f'authority = "{"ab" * 32}"\n', (), 78, "--air-gapped"),
        (f'authority = "{"ab" * 32}"\n', ("--air-gapped", "--inbox", "i"), 2, "--outbox"),
        ("", ("--inbox", "i"), 2, "--air-gapped"),
        (
            f'authority = "{"ab" * 32}"\n',
            ("--air-gapped", "--inbox", "i", "--outbox", "o", "--controller", "https://ctl:8401"),
            2,
            "no controller",
        ),
    ],
)
def test_a_node_follows_one_of_both(
    tmp_path: Path, policy: str, options: tuple[str, ...], status: int, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(policy)
    file.chmod(0o600)
    assert run("run", "--data-dir", str(tmp_path / "data"), "--policy", str(file), *options) == status
    assert named in capsys.readouterr().err
    assert not (tmp_path / "data").exists()
