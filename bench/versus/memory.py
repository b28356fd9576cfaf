"""The machine's free memory, touched once before anything is measured.

On a virtual machine, memory that nobody has used yet is not there: each page is fetched from the
host when it is first written, at two seconds of CPU a GB where a page that was there costs a tenth
of that (a bare copy into files shows it). Who writes more would pay more, by chance of who came
first. A machine that has been up for a while has that behind it.
"""

import mmap
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

SPARED_BYTES: Final = 1 << 30  # for whatever else runs
PIECE_BYTES: Final = 1 << 28
_MADV_POPULATE_WRITE: Final = 23  # Linux 5.14; the module has no name for it yet
_MEMORY: Final = Path("/proc/meminfo")


def free_bytes() -> int:
    """What nobody uses now, not even as a cache; 0 where the system does not say."""
    if not _MEMORY.exists():
        return 0
    facts = dict(line.split(":") for line in _MEMORY.read_text(encoding="ascii").splitlines())
    return int(facts["MemFree"].split()[0]) * 1024


def touch_free() -> float:
    """Write once to all free memory but some, and give it back; how many seconds it took."""
    began = time.perf_counter()
    left = max(0, free_bytes() - SPARED_BYTES)
    held: list[mmap.mmap] = []
    try:
        while left >= PIECE_BYTES and free_bytes() >= SPARED_BYTES:
            piece = mmap.mmap(-1, PIECE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            held.append(piece)
            _write(piece)
            left -= PIECE_BYTES
    finally:
        for piece in held:
            piece.close()
    return time.perf_counter() - began


def _write(piece: mmap.mmap) -> None:
    with suppress(OSError):  # an older kernel
        piece.madvise(_MADV_POPULATE_WRITE)
        return
    for at in range(0, len(piece), mmap.PAGESIZE):
        piece[at] = 1
