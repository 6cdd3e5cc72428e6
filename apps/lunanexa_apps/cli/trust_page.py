"""What the fleet trust, as a page for people."""

from rich.console import Group, RenderableType
from rich.text import Text

from lunanexa_apps.cli.asking import entries
from lunanexa_apps.cli.cells import table, word
from lunanexa_apps.cli.trust_watch import LOST, lack, progress
from lunanexa_client import Document


def trust_page(trust: Document) -> Group:
    """All of it. Fingerprints and identifiers are whole, to be compared and copied."""
    head = Text.assemble(("trust set ", "dim"), (word(trust.get("version")), "bold"))
    parts: list[RenderableType] = [head, *_rotation(trust), Text()]
    authorities = table("AUTHORITY (SHA-256 of its public key)", "")
    for one in entries(trust, "authorities"):
        authorities.add_row(word(one.get("fingerprint")), _use(one.get("issuing"), "issues"))
    keys = table("SIGNING KEY", "")
    for one in entries(trust, "signing_keys"):
        keys.add_row(word(one.get("key_id")), _use(one.get("signing"), "signs"))
    parts += [authorities, Text(), keys, Text()]
    revoked = trust.get("revoked")
    counted = "1 revoked certificate has" if revoked == 1 else f"{word(revoked)} revoked certificates have"
    return Group(*parts, Text(f"{counted} not expired yet"))


def _rotation(trust: Document) -> list[RenderableType]:
    steps = list(progress(trust))
    if not steps:
        return []
    found: list[RenderableType] = [Text(f"rotation, step {steps[0]}", style="yellow")]
    waiting = entries(trust, "waiting")
    if waiting:
        nodes = table("WAITS FOR", "WHICH")
        for one in waiting:
            style = "red" if one.get("state") == LOST else "yellow"
            nodes.add_row(Text(word(one.get("node")), style="bold"), Text(lack(one), style=style))
        found += [Text(), nodes]
    return found


def _use(used: object, doing: str) -> Text:
    return Text(doing, style="green") if used else Text("trusted", style="dim")
