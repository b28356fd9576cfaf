"""The last line of `make test` says what ran, and fails where nothing did."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tally

REPOSITORY = Path(__file__).resolve().parent.parent


def said(path: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "tests.tally", str(path)]
    ended = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout


@pytest.mark.parametrize(
    ("noted", "code", "line"),
    [
        ([{"passed": 7, "skipped": 2}, {"passed": 3}], 0, "10 passed, 0 failed, 2 skipped\n"),
        ([{"passed": 7, "failed": 1}], 1, "7 passed, 1 failed, 0 skipped\n"),
        ([{"skipped": 5}], 1, "0 passed, 0 failed, 5 skipped\n"),
    ],
)
def test_the_sum_of_all_calls_is_said(
    tmp_path: Path, noted: list[dict[str, int]], code: int, line: str
) -> None:
    path = tmp_path / "tally"
    for counts in noted:
        tally.note(path, counts)
    assert said(path) == (code, line)


@pytest.mark.parametrize("workers", [0, 2])
def test_every_test_counts_once_and_what_breaks_before_it_begins_has_failed(
    tmp_path: Path, workers: int
) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import pytest_terminal_summary\n")
    (tmp_path / "test_one.py").write_text(
        "import pytest\n"
        "@pytest.fixture\n"
        "def broken(): raise ValueError\n"
        "def test_breaks(broken): pass\n"
        "def test_passes(): pass\n"
        "def test_fails(): assert False\n"
        "@pytest.mark.skip\n"
        "def test_skips(): pass\n"
    )
    path = tmp_path / "tally"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            os.devnull,
            tmp_path,
        ],
        cwd=tmp_path,
        env=os.environ | {tally.VARIABLE: str(path), "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        check=False,
    )
    assert tally.summed(path) == {"passed": 1, "failed": 2, "skipped": 1}
