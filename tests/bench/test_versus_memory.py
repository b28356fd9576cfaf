"""What `versus` does to the machine's memory before it measures."""

import mmap
import os
from pathlib import Path

import pytest

from bench.versus import memory


def resident_bytes() -> int:
    """What of this process lies in memory."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf(
        "SC_PAGESIZE"
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="no /proc")
def test_a_piece_that_was_written_lies_in_memory() -> None:
    piece = mmap.mmap(-1, memory.PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    before = resident_bytes()
    memory._write(piece)
    assert resident_bytes() - before > memory.PIECE_BYTES * 0.9
    piece.close()
    assert resident_bytes() - before < memory.PIECE_BYTES * 0.1


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_all_free_memory_but_some_is_written_once(
    monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    written: list[mmap.mmap] = []
    monkeypatch.setattr(
        memory,
        "free_bytes",
        lambda: memory.SPARED_BYTES + (pieces - len(written)) * memory.PIECE_BYTES,
    )
    monkeypatch.setattr(memory, "_write", written.append)
    memory.touch_free()
    assert len(written) == pieces
    assert all(piece.closed for piece in written)


def test_memory_that_others_take_meanwhile_is_left_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[mmap.mmap] = []
    free = iter([memory.SPARED_BYTES + 3 * memory.PIECE_BYTES, memory.SPARED_BYTES + 1, 0])
    monkeypatch.setattr(memory, "free_bytes", lambda: next(free))
    monkeypatch.setattr(memory, "_write", written.append)
    memory.touch_free()
    assert len(written) == 1
