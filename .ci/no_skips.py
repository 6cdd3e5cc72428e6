"""Fails when a test was skipped that is not marked by_hand: a skipped test looks like a passed one.

Usage: no_skips.py REPORT.xml... (JUnit reports; tests/conftest.py writes the mark into them)
"""

import sys
import xml.etree.ElementTree as ET


def skipped(path: str) -> list[str]:
    """One line for each skipped test that is not marked by_hand. An expected failure isn't a skip."""
    found = []
    for case in ET.parse(path).getroot().iter("testcase"):
        skip = case.find("skipped")
        if skip is None or skip.get("type") == "pytest.xfail":
            continue
        marks = {prop.get("value") for prop in case.iter("property") if prop.get("name") == "mark"}
        if "by_hand" not in marks:
            found.append(f"{case.get('classname')}::{case.get('name')}: {skip.get('message')}")
    return found


def main(paths: list[str]) -> int:
    """Exit status 1 with the list, or with a complaint when there is nothing to read."""
    if not paths:
        print("no_skips: no report given")
        return 1
    found = [line for path in paths for line in skipped(path)]
    for line in found:
        print(f"skipped: {line}")
    print(f"{len(found)} skipped tests in {len(paths)} reports")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
