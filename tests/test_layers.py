"""Rules of the tree that no linter holds: closed lists of imports, short functions, a README a layer."""

import ast
import sys
from functools import cache
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ("core", "ports", "adapters", "apps", "simulation")

# The closed list of libraries, layer by layer. Adapters are where libraries live, so they have none.
LIBRARIES = {
    "core": {"attrs"},
    "ports": {"attrs"},
    "ports/lunanexa_ports/conformance": {"attrs", "trio"},
    "apps": {"attrs", "cattrs", "structlog", "trio"},
    "apps/lunanexa_client": {"attrs", "trio", "trio_websocket"},
    "apps/lunanexa_apps/cli": {"attrs", "cattrs", "click", "rich", "structlog", "trio"},
    "apps/lunanexa_apps/node/cli": {"attrs", "click", "rich"},
    "apps/lunanexa_apps/node/main.py": {"attrs", "click", "structlog", "trio"},
    # structlog, because the services' logs are part of a run's trace.
    "simulation": {"attrs", "structlog", "trio"},
    "simulation/lunanexa_simulation/cli": {"attrs", "click", "rich", "trio"},
}

# What core may take of the standard library: names and arithmetic, nothing that acts.
CORE_STANDARD_LIBRARY = {
    *(
        "__future__",
        "abc",
        "base64",
        "bisect",
        "collections",
        "dataclasses",
        "datetime",
        "decimal",
        "enum",
        "fractions",
    ),
    *("functools", "hashlib", "heapq", "hmac", "ipaddress", "itertools", "json", "math", "operator", "re", "string"),
    *("struct", "types", "typing", "unicodedata"),
}

FUNCTION_LINES_MAX = 70


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@attrs.frozen
class Source:
    """What one file says, read once for all tests."""

    imported: tuple[str, ...]
    """Top-level names, but not those under ``if TYPE_CHECKING``."""
    functions: tuple[tuple[str, int, int], ...]
    """Name, first line and last line."""


@cache
def read(path: Path) -> Source:
    imported: list[str] = []
    functions: list[tuple[str, int, int]] = []
    pending: list[ast.AST] = [ast.parse(path.read_bytes())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending.extend(node.orelse)
            continue
        if isinstance(node, ast.Import):
            imported.extend(name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
            imported.append(node.module.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions.append((node.name, node.lineno, node.end_lineno or node.lineno))
        # Neither stands within an expression.
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            pending.extend(getattr(node, field, ()))
    return Source(tuple(imported), tuple(functions))


def allowed_libraries(path: Path) -> set[str] | None:
    """The list of the nearest entry: the file itself, then its folders from the inside out."""
    inside = path.relative_to(ROOT)
    return next((LIBRARIES[str(place)] for place in (inside, *inside.parents) if str(place) in LIBRARIES), None)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer in LIBRARIES])
def test_a_layer_imports_only_its_libraries(layer: str) -> None:
    foreign = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources(layer)
        for name in read(path).imported
        if name not in sys.stdlib_module_names
        and not name.startswith("lunanexa_")
        and name not in (allowed_libraries(path) or set())
    }
    assert not foreign


def test_core_takes_only_pure_parts_of_the_standard_library() -> None:
    impure = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in sources("core")
        for name in read(path).imported
        if name in sys.stdlib_module_names and name not in CORE_STANDARD_LIBRARY
    }
    assert not impure


def test_core_never_awaits() -> None:
    asynchronous = (ast.AsyncFunctionDef, ast.Await, ast.AsyncFor, ast.AsyncWith)
    found = {
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources("core")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, asynchronous)
    }
    assert not found


def test_no_function_is_too_long() -> None:
    long = {
        f"{path.relative_to(ROOT)}:{first} {name}"
        for layer in LAYERS
        for path in sources(layer)
        for name, first, last in read(path).functions
        if last - first >= FUNCTION_LINES_MAX
    }
    assert not long


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_a_readme(layer: str) -> None:
    text = (ROOT / layer / "README.md").read_text()
    assert "## What may be imported" in text


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_is_typed(layer: str) -> None:
    assert (ROOT / layer / f"lunanexa_{layer}" / "py.typed").exists()
