"""Imports every module of core, and of ports but its conformance suites.

Run by an interpreter that has attrs and nothing else, it proves that the two layers need nothing else.
"""

import importlib
import pkgutil
import sys


def main() -> int:
    """Imports and counts; a missing library ends it with the import error that names it."""
    count = 0
    for package_name in ("lunanexa_core", "lunanexa_ports"):
        package = importlib.import_module(package_name)
        for module in pkgutil.walk_packages(package.__path__, f"{package_name}."):
            if module.name.startswith("lunanexa_ports.conformance"):
                continue
            importlib.import_module(module.name)
            count += 1
    foreign = sorted({name.partition(".")[0] for name in sys.modules} - _expected())
    if foreign:
        print(f"imported besides attrs: {', '.join(foreign)}")
        return 1
    print(f"{count} modules need nothing but attrs")
    return 0


def _expected() -> set[str]:
    return {*sys.stdlib_module_names, "__main__", "attr", "attrs", "lunanexa_core", "lunanexa_ports"}


if __name__ == "__main__":
    sys.exit(main())
