"""The pages of the documentation: each is found from the index, and no link between them leads nowhere."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("core", "ports", "adapters", "apps", "simulation", "deploy", "docs")
PAGES = sorted(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md")) + sorted(ROOT.glob("*.md"))
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]*))?\)")


def test_every_page_is_in_the_index() -> None:
    docs = ROOT / "docs"
    indexes = (docs / "README.md", docs / "decisions" / "README.md")
    linked = {target for index in indexes for target, _ in links(index)}
    pages = {page for page in docs.rglob("*.md") if page not in indexes and page.name != "0000-template.md"}
    assert pages > {docs / "node.md", docs / "decisions" / "0001-hexagon-and-kernel.md"}
    assert pages - linked == set()


def test_no_link_leads_nowhere() -> None:
    found = [(page, target, anchor) for page in PAGES for target, anchor in links(page)]
    assert len(found) > 300
    assert [(page, target) for page, target, _ in found if not target.exists()] == []
    anchors = {page: anchors_of(page) for page in {target for _, target, _ in found} if page.suffix == ".md"}
    assert [one for one in found if one[2] and one[1] in anchors and one[2] not in anchors[one[1]]] == []


def links(page: Path) -> list[tuple[Path, str]]:
    """What a page leads to within the repository, each with its anchor."""
    text = _CODE.sub("", page.read_text(encoding="utf-8"))
    return [
        ((page.parent / path).resolve() if path else page, anchor)
        for path, anchor in _LINK.findall(text)
        if "://" not in path and not path.startswith("mailto:")
    ]


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub makes of headings."""
    found = set()
    for heading in re.findall(r"^#+ (.*)$", _CODE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        found.add(re.sub(r"[^\w\- ]", "", words).replace(" ", "-"))
    return found
