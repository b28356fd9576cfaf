"""How many tests `make test` ran, over all its calls of pytest: the last line that it prints.

python -m tests.tally FILE    prints the sum of what `pytest_terminal_summary` has noted there
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Final

VARIABLE: Final = "BOURN_TEST_TALLY"
KINDS: Final = ("passed", "failed", "skipped")


def note(path: Path, counts: dict[str, int]) -> None:
    """Add what one call of pytest ran; what broke before it began has failed."""
    with path.open("a", encoding="utf-8") as file:
        print(*(counts.get(kind, 0) for kind in KINDS), file=file)


def summed(path: Path) -> dict[str, int]:
    """All that was noted."""
    total: Counter[str] = Counter()
    for line in path.read_text(encoding="utf-8").splitlines():
        total.update(dict(zip(KINDS, map(int, line.split()), strict=True)))
    return {kind: total[kind] for kind in KINDS}


def main() -> int:
    """Say it; fail where nothing was run, or something failed."""
    total = summed(Path(sys.argv[1]))
    print(", ".join(f"{count} {kind}" for kind, count in total.items()))
    return int(not total["passed"] or bool(total["failed"]))


if __name__ == "__main__":
    sys.exit(main())
