"""``lunanexa-node init --air-gapped``, ``make-bundle`` and ``read-outbox``: both sides of a node without a network."""

import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import click

from lunanexa_apps.cli.options import JSON, output_option
from lunanexa_apps.cli.tools import EXIT_CONFIG, EXIT_HELD, fail, printable
from lunanexa_apps.codec import CodecError, decode, encode, unstructure
from lunanexa_apps.node.air_gap.compose import NotComposed, WrittenDocument, compose
from lunanexa_apps.node.air_gap.identity import become_air_gapped
from lunanexa_apps.node.air_gap.reading import ReadReport, read_outbox
from lunanexa_apps.node.cli.options import data_dir_option, status_of
from lunanexa_apps.node.cli.tools import NodeTools
from lunanexa_core.ids import NodeId, is_identifier
from lunanexa_core.southbound.bundle import Blob, Bundle
from lunanexa_core.southbound.outbox import OutboxReport, key_fingerprint
from lunanexa_ports.errors import PortError
from lunanexa_ports.private_files import LockHeld
from lunanexa_ports.signing import Signer

_FINGERPRINT = re.compile(r"[0-9a-f]{64}\Z")


@click.command("init", short_help="Make a machine without a network a node.")
@data_dir_option
@click.option("--air-gapped", is_flag=True, required=True, help="It will be directed by bundles, and by no controller.")
@click.option("--node", required=True, metavar="NAME", help="What the node is called in its bundles.")
@output_option
@click.pass_obj
def init_command(tools: NodeTools, data_dir: str, air_gapped: bool, node: str, output: str) -> None:
    """Make this machine's key, and show the fingerprint by which its reports are known.

    Asked again, it shows the same.
    """
    assert air_gapped, "click demands it"
    if not is_identifier(node):
        fail("--node: must be 1 to 256 ASCII letters, digits and -_.:", exit_code=EXIT_CONFIG)
    tools.start_logging("auto", False)
    try:
        lock = tools.lock(data_dir)
        if isinstance(lock, LockHeld):
            fail(f"--data-dir: {lock.holder} runs on it", hint="stop it first", exit_code=EXIT_HELD)
        with lock:
            public_key = tools.run(lambda: _become(tools, data_dir, NodeId(node)))
    except PortError as error:
        fail(str(error), exit_code=status_of(error))
    fingerprint = key_fingerprint(public_key)
    if output == JSON:
        click.echo(json.dumps({"node": node, "fingerprint": fingerprint}, indent=2))
        return
    click.echo(f"This machine is the air-gapped node {node}.")
    click.echo(f"fingerprint  {fingerprint}")
    click.echo("\nnext: bring the fingerprint to whoever will read its outbox, and name the authority in the policy;")
    click.echo(f"      then lunanexa-node run --air-gapped --data-dir {data_dir} --inbox DIR --outbox DIR")


async def _become(tools: NodeTools, data_dir: str, node: NodeId) -> str:
    async with tools.open_local(data_dir) as ports:
        await become_air_gapped(ports.store, node)
        return ports.signer.public_key


@click.command("make-bundle", short_help="Write the next bundle of an air-gapped node.")
@click.option("--key", "key_file", required=True, metavar="FILE", help="The authority's private key (Ed25519, PEM).")
@click.option("--new-key", is_flag=True, help="Make the key where there is none.")
@click.option("--document", "document_file", required=True, metavar="FILE", help="What shall run on the node (JSON).")
@click.option("--after", metavar="DIR", help="The bundle before this one.")
@click.option("--baseline", is_flag=True, help="Also for a node that has nothing; without --after always.")
@click.option(
    "--generation",
    type=click.IntRange(1),
    metavar="N",
    help="By default 1, or one more than --after.",
)
@click.option(
    "--blob",
    "blob_files",
    multiple=True,
    metavar="FILE",
    help="A file to bring along, such as a model; again for more.",
)
@click.option("--out", required=True, metavar="DIR", help="A folder that is not there yet.")
@click.pass_obj
def make_bundle_command(
    tools: NodeTools,
    key_file: str,
    new_key: bool,
    document_file: str,
    after: str | None,
    baseline: bool,
    generation: int | None,
    blob_files: tuple[str, ...],
    out: str,
) -> None:
    """Write a signed bundle into a folder, to be carried into the node's inbox.

    Where the operator is; the key never leaves there.
    """
    try:
        signer = tools.media.read_key(key_file, new_key)
        written = decode(WrittenDocument, tools.media.read_file(document_file), closed=True)
        before = None if after is None else _bundle_before(tools, after, signer)
        blobs = _described(tools, blob_files)
        made = compose(
            written,
            before,
            generation=generation or (1 if before is None else before.generation + 1),
            baseline=baseline or before is None,
            blobs={name: blob for name, (_, blob) in blobs.items()},
        )
        if isinstance(made, NotComposed):
            fail(f"--document: {made.problem}", exit_code=EXIT_CONFIG)
        tools.media.write_bundle(out, signer.sign(encode(made)), tuple(blobs.values()))
    except CodecError as error:
        fail(f"--document: {document_file}: {error}", exit_code=EXIT_CONFIG)
    except PortError as error:
        fail(str(error), exit_code=status_of(error))
    shown = "a baseline" if made.predecessor is None else f"after generation {made.predecessor}"
    click.echo(f"{out}: generation {made.generation} of node {made.node}, {shown}; {len(made.blobs)} blobs")
    click.echo(f'authority = "{signer.public_key}"')


def _bundle_before(tools: NodeTools, folder: str, signer: Signer) -> Bundle:
    document = tools.media.read_bundle(folder)
    if document is None:
        fail(f"--after: {folder} holds no bundle", exit_code=EXIT_CONFIG)
    if not tools.media.verifier.verify(document, {signer.key_id: signer.public_key}):
        fail(f"--after: {folder} is not signed by --key", exit_code=EXIT_CONFIG)
    try:
        return decode(Bundle, document.payload)
    except CodecError as error:
        fail(f"--after: {folder} can't be read by this version ({error})", exit_code=EXIT_CONFIG)


def _described(tools: NodeTools, paths: tuple[str, ...]) -> dict[str, tuple[str, Blob]]:
    """By the name of the file."""
    found: dict[str, tuple[str, Blob]] = {}
    for path in paths:
        name = path.rstrip("/").rpartition("/")[2]
        if name in found:
            fail(f"--blob: two files are called {name}: rename one", exit_code=EXIT_CONFIG)
        found[name] = path, tools.media.describe_blob(path)
    return found


@click.command("read-outbox", short_help="Verify and show what an air-gapped node reports.")
@click.argument("outbox", metavar="DIR")
@click.option("--fingerprint", required=True, metavar="HEX", help="Of the node's key, as `init` showed it.")
@output_option
@click.pass_obj
def read_outbox_command(tools: NodeTools, outbox: str, fingerprint: str, output: str) -> None:
    """Verify all reports of an outbox, and show the newest.

    Exit status 1: a file is not the node's, or there is no report.
    """
    if _FINGERPRINT.match(fingerprint) is None:
        fail("--fingerprint: must be 64 hexadecimal digits, as init shows them", exit_code=EXIT_CONFIG)
    try:
        read = read_outbox(tools.media.read_reports(outbox), fingerprint, tools.media.verifier)
    except PortError as error:
        fail(str(error), exit_code=status_of(error))
    problems = [one for one in read if one.problem is not None]
    newest = next((one.report for one in reversed(read) if one.report is not None), None)
    if output == JSON:
        strange = {one.name: one.problem for one in problems}
        shown = None if newest is None else unstructure(newest)
        click.echo(json.dumps({"reports": len(read) - len(problems), "problems": strange, "newest": shown}, indent=2))
    else:
        _show(read, newest, problems)
    raise SystemExit(1 if problems or newest is None else 0)


def _show(read: Sequence[ReadReport], newest: OutboxReport | None, problems: list[ReadReport]) -> None:
    for one in problems:
        _line("problem", f"{one.name} {one.problem}")
    if newest is None:
        click.echo("there is no report")
        return
    _line("node", f"{newest.node} of cluster {newest.cluster or 'none yet'}")
    own = len(read) - len(problems)
    _line("report", f"{newest.number}, {_time(newest.wall_ms)} by the node's clock; {own} here are its own")
    _line("in force", "nothing yet" if newest.bundle is None else f"generation {newest.heartbeat.generation}")
    for bundle in newest.refused:
        _line("refused", f"bundle {bundle.name}: {bundle.refusal}")
    for refused in newest.heartbeat.refused:
        _line("refused", f"{refused.assignment}: {refused.refusal}")
    for replica in newest.heartbeat.replicas:
        where = "" if replica.port is None else f" at {replica.host}:{replica.port}"
        _line("replica", f"{replica.assignment}: {replica.state.value}{where}, {replica.restarts} restarts")
    for waiting in newest.heartbeat.unstarted:
        _line("replica", f"{waiting.assignment}: {waiting.state.value}")


def _line(title: str, text: str) -> None:
    # Words of a medium, and of a node that may be anybody's by now: they command no terminal, and make no line.
    shown = printable(text).replace("\n", " ")
    click.echo(f"{title:<13}{shown}")


def _time(wall_ms: int) -> str:
    try:
        return datetime.fromtimestamp(wall_ms // 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return f"{wall_ms} ms"
