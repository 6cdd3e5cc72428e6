"""``make-bundle`` and ``run --air-gapped`` as a person uses them: what is written, and what is refused with a fix."""

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from lunanexa_adapters.crypto.signing import Ed25519Signer
from lunanexa_adapters.files.bundle_files import read_whole_bundle
from lunanexa_adapters.sqlite.node_store import open_sqlite_node_store
from lunanexa_apps.codec import decode, encode
from lunanexa_apps.node.identity import IDENTITY, NodeIdentity
from lunanexa_apps.node.main import main
from lunanexa_core.identity.trust import Authority, SigningKey, first_trust
from lunanexa_core.ids import BootId, ClusterId, NodeId
from lunanexa_core.southbound.bundle import Bundle, blob_path
from lunanexa_core.southbound.heartbeat import Heartbeat
from lunanexa_core.southbound.outbox import OutboxReport, RefusedBundle, SignedReport, key_fingerprint

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


def test_a_node_that_lies_commands_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    signer = Ed25519Signer.load_or_create(tmp_path / "node.key")
    heartbeat = Heartbeat(
        node=NodeId("edge-1"), boot=BootId("b"), sequence=1, epoch=0, generation=1, agent_version="", replicas=()
    )
    report = OutboxReport(
        node=NodeId("edge-1"), cluster=ClusterId("\x1b[2J\nreport"), number=1, wall_ms=2**53 - 1, bundle=None,
        refused=(RefusedBundle(name="a\x1b[1A", digest="", refusal="b\nnode         edge-2"),), heartbeat=heartbeat,
    )  # fmt: skip
    signed = signer.sign(encode(report))
    envelope = SignedReport(
        public_key=signer.public_key, key_id=signed.key_id, signature=signed.signature, payload=signed.payload
    )
    (tmp_path / "outbox").mkdir()
    (tmp_path / "outbox" / "report-1.json").write_bytes(encode(envelope))
    (tmp_path / "outbox" / "report-\x1b[2J\n.json").write_bytes(b"{}")
    fingerprint = key_fingerprint(signer.public_key)
    assert run("read-outbox", str(tmp_path / "outbox"), "--fingerprint", str(fingerprint)) == 1
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert [line.split()[0] for line in shown.splitlines()] == ["problem", "node", "report", "in", "refused"]


class Machine:
    """A machine whose owner names an authority."""

    def __init__(self, folder: Path) -> None:
        self.data, self.policy = folder / "data", folder / "policy.toml"
        self.policy.write_text(f'authority = "{"ab" * 32}"\n')
        self.policy.chmod(0o600)
        (folder / "inbox").mkdir()
        self._media = ("--inbox", str(folder / "inbox"), "--outbox", str(folder / "outbox"))
        self.air_gapped = ("--air-gapped", *self._media)

    def init(self) -> int:
        return run("init", "--air-gapped", "--node", "edge-1", "--data-dir", str(self.data))

    def run(self, verb: str, *options: str) -> int:
        return run(verb, "--data-dir", str(self.data), "--policy", str(self.policy), *options)

    def look(self, verb: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, tuple[str, str]]:
        """What is found, by step; the exit status fits."""
        capsys.readouterr()
        status = self.run(verb, *options, "-o", "json")
        shown = json.loads(capsys.readouterr().out)
        assert (status == 0) == shown["ok"]
        return {one["step"]: (one["verdict"], one["found"]) for one in shown["steps"]}

    def enrol(self) -> None:
        """As an enrolment leaves the directory."""
        root, key = Authority(certificate="", fingerprint="ab" * 32), SigningKey(key_id="k", public_key="cd" * 32)
        known = NodeIdentity(
            node=NodeId("gpu-1"), cluster=ClusterId("c"), epoch=1, trust=first_trust(root, key), issuer="", token="t",
            controllers=(),
        )  # fmt: skip

        async def put() -> None:
            async with open_sqlite_node_store(self.data / "node" / "node.sqlite3") as store:
                await store.put(IDENTITY, encode(known))

        (self.data / "node").mkdir(parents=True)
        trio.run(put)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def problems(found: dict[str, tuple[str, str]]) -> dict[str, str]:
    return {step: told for step, (verdict, told) in found.items() if verdict == "problem"}


def test_an_air_gapped_node_is_looked_at_without_a_controller(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.init() == 0
    assert not (machine.data / "node" / "identity").exists(), "it has no identity towards controllers"
    found = machine.look("check-config", capsys, *machine.air_gapped)
    assert not problems(found)
    wanted = ["data directory", "air gap", "authority", "counter", "inbox", "outbox", "policy"]
    assert list(found) == wanted
    assert not Path(f"{machine.policy}.counter").exists(), "nothing is made"
    found = machine.look("doctor", capsys)
    assert "air gap" in found
    assert not {"controller", "enrolment", "certificate", "data listener", "lease"} & found.keys()
    assert not {"authority", "counter", "policy"} & problems(found).keys()


def test_only_who_follows_controllers_needs_what_it_would_show_them(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = machine.data / "node" / "identity"
    folder.mkdir(0o700, parents=True)
    (folder / "identity.pem").touch(0o600)
    for verb in ("check-config", "doctor"):
        found = machine.look(verb, capsys)
        assert "identity.pem holds no private key" in problems(found)["enrolment"]
        assert "data directory" in found, "what fails keeps no other step out"
    assert machine.init() == 0
    assert not problems(machine.look("check-config", capsys, *machine.air_gapped))
    assert "air gap" in machine.look("doctor", capsys)


def test_what_an_air_gapped_node_lacks_is_named(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no air-gapped node's" in problems(machine.look("check-config", capsys, *machine.air_gapped))["air gap"]
    assert machine.init() == 0
    Path(f"{machine.policy}.counter").mkdir()
    (tmp_path / "outbox").touch()
    (tmp_path / "inbox").rmdir()
    (tmp_path / "inbox").touch()
    machine.policy.write_text("")
    for verb, options in (("check-config", machine.air_gapped), ("doctor", machine.air_gapped[1:])):
        found = problems(machine.look(verb, capsys, *options))
        assert {"authority", "counter", "inbox", "outbox"} <= found.keys()


def test_a_place_that_can_not_be_looked_at_is_named(
    machine: Machine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert machine.init() == 0
    nowhere = tmp_path / ("x" * 300)
    for verb, options in (("check-config", ["--air-gapped"]), ("doctor", [])):
        found = problems(machine.look(verb, capsys, *options, "--inbox", str(nowhere), "--outbox", str(nowhere)))
        assert "can't be looked at (File name too long)" in found["inbox"]
        assert "can't be looked at (File name too long)" in found["outbox"]
    machine.data = nowhere
    for verb in ("check-config", "doctor"):
        found = problems(machine.look(verb, capsys))
        assert "can't be looked at" in found["data directory"]
        assert "policy" in found, "what fails keeps no other step out"


def test_a_directory_of_the_other_kind_is_refused(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    assert machine.init() == 0
    assert "follows no controller" in problems(machine.look("check-config", capsys))["air gap"]
    machine.policy.write_text("")
    assert machine.run("run") == 78
    assert "--air-gapped" in capsys.readouterr().err


def test_an_enrolled_directory_follows_no_bundles(machine: Machine, capsys: pytest.CaptureFixture[str]) -> None:
    machine.enrol()
    assert machine.init() == 78
    assert "is enrolled" in capsys.readouterr().err
    assert machine.run("run", *machine.air_gapped) == 78
    assert "is enrolled" in capsys.readouterr().err
    assert not Path(f"{machine.policy}.counter").exists()
    assert "is enrolled" in problems(machine.look("check-config", capsys, *machine.air_gapped))["air gap"]
    assert "names an authority" in problems(machine.look("check-config", capsys))["policy"]
