"""The coverage gate: branch coverage alone, since a total would let covered lines hide untaken branches.

Usage: branch_coverage.py REPORT.json MINIMUM_PERCENT
"""

import json
import sys
from pathlib import Path


def main(report: str, minimum_percent: str) -> int:
    """Prints the figure and, when it is too low, the files that pull it down."""
    data = json.loads(Path(report).read_text())
    branches = data["totals"]["num_branches"]
    covered = data["totals"]["covered_branches"]
    percent = 100 * covered / branches if branches else 100.0
    print(f"branch coverage of core: {percent:.1f} % ({covered} of {branches}; at least {minimum_percent} %)")
    if percent >= float(minimum_percent):
        return 0
    missing = {name: file["summary"]["missing_branches"] for name, file in data["files"].items()}
    for name, count in sorted(missing.items(), key=lambda item: -item[1])[:10]:
        if count:
            print(f"  {count:4d} branches not taken in {name}")
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
