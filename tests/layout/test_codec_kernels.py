"""The compiled part: checked memory, one specialisation, and a cache that is found again."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import bourn
from bourn.layout import arrow, codec
from bourn.layout.history import pages, rows
from bourn.layout.kernels import (
    append,
    compiled,
    from_json,
    from_pages,
    from_read,
    from_rows,
    joining,
    memory,
    sequenced,
    to_append,
    to_rows,
)

PACKAGE = Path(compiled.__file__).parent
HELPERS = ("facts.py", "memory.py", "protobuf.py")
INPUT_HELPERS = ("input_facts.py", "input_text.py", "input_words.py")


def checksum_of(*names: str) -> str:
    digest = hashlib.sha256()
    for name in names:
        digest.update((PACKAGE / name).read_bytes())
    return digest.hexdigest()[:16]


def test_the_kernels_carry_the_checksum_of_the_helpers_they_were_compiled_with() -> None:
    checksum = checksum_of(*HELPERS)
    assert checksum == append.HELPERS_CHECKSUM, "write this checksum into append.py"
    assert checksum == sequenced.HELPERS_CHECKSUM, "write this checksum into sequenced.py"
    # Their helpers carry the checksum of the helpers' own.
    checksum = checksum_of("rows_facts.py", "sequenced.py")
    assert checksum == to_rows.HELPERS_CHECKSUM, "write this checksum into to_rows.py"
    checksum = checksum_of("rows_facts.py", "to_rows.py")
    assert checksum == from_rows.HELPERS_CHECKSUM, "write this checksum into from_rows.py"
    checksum = checksum_of("rows_facts.py", "memory.py")
    assert checksum == from_pages.HELPERS_CHECKSUM, "write this checksum into from_pages.py"
    checksum = checksum_of("client_facts.py", "append.py")
    assert checksum == from_read.HELPERS_CHECKSUM, "write this checksum into from_read.py"
    checksum = checksum_of("client_facts.py", "facts.py", "memory.py")
    assert checksum == to_append.HELPERS_CHECKSUM, "write this checksum into to_append.py"
    checksum = checksum_of(*INPUT_HELPERS, "json_text.py", "append.py")
    assert checksum == from_json.HELPERS_CHECKSUM, "write this checksum into from_json.py"
    checksum = checksum_of("join_facts.py", "memory.py")
    assert checksum == joining.HELPERS_CHECKSUM, "write this checksum into joining.py"


def test_no_other_file_has_code_that_kernels_are_compiled_with() -> None:
    kernels = {"append.py", "sequenced.py", "to_rows.py", "from_rows.py", "from_pages.py"}
    kernels |= {"from_read.py", "to_append.py", "to_json.py", "from_json.py", "joining.py"}
    assert {path.name for path in PACKAGE.glob("*.py")} == {
        *HELPERS,
        *INPUT_HELPERS,
        "rows_facts.py",
        "client_facts.py",
        "join_facts.py",
        "json_facts.py",
        "json_text.py",
        *kernels,
        "__init__.py",
        "compiled.py",
    }


def test_every_kernel_has_one_specialisation_and_takes_no_other() -> None:
    said: list[str] = []
    codec.warm(said.append)
    for name in compiled.NAMES:
        kernel: Any = getattr(codec._KERNELS, name)
        assert len(kernel.signatures) == 1
    rows.warm(said.append)
    for name in compiled.HISTORY_NAMES:
        kernel = getattr(pages.KERNELS, name)
        assert len(kernel.signatures) == 1
    arrow.warm(said.append)
    for name in compiled.CLIENT_NAMES:
        kernel = getattr(arrow._KERNELS, name)
        assert len(kernel.signatures) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        codec._KERNELS.metered_sizes(np.zeros(8, np.float64), 1, np.zeros(1, np.uint32))
    before = list(said)
    codec.warm(said.append)
    assert said == before, "warm is silent once it is warm"


@memory.called
def touch(which: int, array: Any, at: int, size: int) -> int:  # noqa: C901, PLR0912  a table
    data = memory.span(array)
    if which == 0:
        memory.load_byte(data, at)
    elif which == 1:
        memory.load_big(data, at, size)
    elif which == 2:
        memory.load_little_u32(data, at)
    elif which == 3:
        memory.load_little_u64(data, at)
    elif which == 4:
        memory.load_word(data, at)
    elif which == 5:
        memory.store_byte(data, at, 1)
    elif which == 6:
        memory.store_big(data, at, 1, size)
    elif which == 7:
        memory.store_little_u32(data, at, 1)
    elif which == 8:
        memory.store_word(data, at, 1)
    elif which == 9:
        memory.store_varint(data, at, 1 << (7 * (size - 1)))
    elif which == 10:
        memory.copy(data, at, data, 0, size)
    elif which == 11:
        memory.copy(data, 0, data, at, size)
    elif which == 12:
        memory.mark_odd(data, at)
    elif which == 13:
        memory.mark_backslashes(data, at)
    elif which == 14:
        memory.copy_block(data, at, data, 0)
    elif which == 15:
        memory.copy_block(data, 0, data, at)
    return which


ARRAY_BYTES = 72
WIDTHS = {0: 1, 1: 3, 2: 4, 3: 8, 4: 8, 5: 1, 6: 2, 7: 4, 8: 8, 9: 5, 10: 6, 11: 6}
WIDTHS |= dict.fromkeys(range(12, 16), memory.BLOCK_BYTES)


@pytest.mark.parametrize(("which", "width"), WIDTHS.items())
def test_an_access_outside_of_a_span_stops(which: int, width: int) -> None:
    array = np.zeros(ARRAY_BYTES, np.uint8)
    unit = 8 if which in {4, 8} else 1
    last = (ARRAY_BYTES - width) // unit
    for at in (0, last):
        assert touch(which, array, at, width) == which
    for at in (-1, last + 1, ARRAY_BYTES, 2**40, -(2**40)):
        with pytest.raises(IndexError, match="outside of a span"):
            touch(which, array, at, width)


def test_a_copy_of_a_negative_size_stops() -> None:
    with pytest.raises(IndexError, match="outside of a span"):
        touch(10, np.zeros(ARRAY_BYTES, np.uint8), 0, -1)


@memory.called
def varint_sizes(values: npt.NDArray[np.uint64], sizes: npt.NDArray[np.int64]) -> None:
    for index in range(values.size):
        sizes[index] = memory.varint_size(values[index])


def test_varints_have_their_size() -> None:
    values = [2**bits + change for bits in range(64) for change in (-1, 0)] + [2**64 - 1]
    sizes = np.zeros(len(values), np.int64)
    varint_sizes(np.array(values, np.uint64), sizes)
    assert sizes.tolist() == [max(1, -(-value.bit_length() // 7)) for value in values]


@memory.called
def marks_of(block: npt.NDArray[np.uint8], marks: npt.NDArray[np.uint64], place: int) -> int:
    data = memory.span(block)
    marks[0] = memory.mark_odd(data, 0)
    marks[1] = memory.mark_backslashes(data, 0)
    marks[2] = memory.marks_from(marks[0], place)
    return memory.first_mark(marks[0])


def test_every_byte_that_json_escapes_or_that_is_not_ascii_is_marked_where_it_stands() -> None:
    odd = {*range(0x20), *range(0x80, 0x100), ord('"'), ord("\\")}
    for byte in range(256):
        at = byte % 64
        block = np.full(64, ord("x"), np.uint8)
        block[[at, 63]] = byte, ord('"')
        marks = np.zeros(3, np.uint64)
        first = marks_of(block, marks, at + 1)
        wanted = {63} | ({at} if byte in odd and at < 63 else set())
        assert first == min(wanted)
        found = [[bit for bit in range(64) if mark >> bit & 1] for mark in marks.tolist()]
        backslashes = [at] if byte == ord("\\") else []
        assert found == [sorted(wanted), backslashes, [63] if at < 63 else []]


def test_importing_the_codec_does_not_import_numba() -> None:
    script = "import sys, bourn.layout.codec as codec; codec.decode_append_input(bytes.fromhex("
    script += "'0a041a026869')); sys.exit('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


# The cache: a copy of the package, so that the places can be closed one by one.

PROBE = """
from bourn.layout.kernels import compiled
compiled.NAMES = ("metered_sizes",)
kernels = compiled.Kernels()
kernels.warm(print)
print("cache", kernels.metered_sizes.stats.cache_path)
"""


def probe(source: Path, home: Path) -> list[str]:
    """Warm the smallest kernel in a fresh process; return what it said and where the cache is."""
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    environment = {**kept, "PYTHONPATH": str(source), "HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PROBE], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_cold_cache_is_told_of_and_a_warm_one_found_by_the_next_process(tmp_path: Path) -> None:
    source, home = tmp_path / "source", tmp_path / "home"
    home.mkdir()
    shutil.copytree(
        Path(bourn.__file__).parent, source / "bourn", ignore=shutil.ignore_patterns("__pycache__")
    )
    # Nothing can be created beside the sources: the user's own cache directory is taken.
    beside = source / "bourn" / "layout" / "kernels" / "__pycache__"
    beside.touch()
    said, where = probe(source, home)
    assert said == "compiling the record codec, once: 1 of 1 done"
    assert where.startswith(f"cache {home}")
    assert probe(source, home) == [where]
    # Nor there: it works, and says that it will take its time again.
    said, where = probe(source, Path(os.devnull))
    assert said == "compiling the record codec, at every start (no cache): 1 of 1 done"
    assert where == "cache None"
