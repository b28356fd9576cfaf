"""What a server does to its own process, each in a process of its own."""

import subprocess
import sys

from bourn.engine.process import _unwritten

MAPS = """\
10000-30000 r--p 00000000 08:01 77                         /lib/constants.so
Size:                128 kB
Anonymous:             0 kB
30000-50000 r-xp 00020000 08:01 77                         /lib/code of it.so
Anonymous:             0 kB
50000-60000 r--p 00040000 08:01 77                         /lib/relocated.so
Anonymous:            64 kB
60000-70000 rw-p 00050000 08:01 77                         /lib/variables.so
Anonymous:             0 kB
70000-80000 r--p 00000000 00:00 0
Anonymous:             0 kB
80000-90000 r--s 00000000 08:01 78                         /lib/shared
Anonymous:             0 kB
7ffd0000-7ffd2000 r-xp 00000000 00:00 0                    [vdso]
Anonymous:             0 kB
"""


def run(text: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_arrays_are_made_without_pandas_and_read_back() -> None:
    run(
        "import sys\n"
        "from bourn.engine.process import leave_out_pandas\n"
        "leave_out_pandas()\n"
        "import pyarrow as pa\n"
        "import bourn.engine.node\n"
        "assert pa.array([1, None], pa.int64()).to_pylist() == [1, None]\n"
        "assert 'pandas' not in sys.modules\n"
    )


def test_arrow_shares_the_heap_of_all_unless_told_otherwise() -> None:
    for pool in ("system", "mimalloc"):
        run(
            "import os\n"
            "from bourn.engine.process import ARROW_POOL, share_heaps\n"
            f"os.environ.update({{ARROW_POOL: {pool!r}}} if {pool != 'system'} else {{}})\n"
            "share_heaps()\n"
            "import pyarrow as pa\n"
            f"assert pa.default_memory_pool().backend_name == {pool!r}\n"
        )


def test_the_compiler_works_again_when_it_is_needed_again() -> None:
    run(
        "from bourn.engine.process import tune_process\n"
        "from bourn.layout import codec\n"
        "from bourn.layout.records import encode_records\n"
        "from bourn.model.record import Record\n"
        "codec.warm(lambda _: None)\n"
        "tune_process()\n"
        "batch = encode_records([Record(b'a'), Record(b'b')])\n"
        "found = codec.decode_sequenced(batch.payload, 2, 5, 7, 0, 2)\n"
        "assert [record.body for record in found] == [b'a', b'b']\n"
        "from numba import njit\n"
        "assert njit(lambda number: number * 3 + 1)(5) == 16\n"
    )


def test_only_what_nobody_could_write_to_and_nobody_has_written_to_is_let_go() -> None:
    assert list(_unwritten(MAPS)) == [(0x10000, 0x30000), (0x30000, 0x50000)]
    assert list(_unwritten("")) == []


def test_most_of_the_libraries_leaves_memory_and_what_is_used_comes_back() -> None:
    run(
        "import numba, pyarrow.parquet\n"
        "import pyarrow as pa\n"
        "from bourn.engine.process import page_out\n"
        "def file_bytes():\n"
        "    status = open('/proc/self/status').read()\n"
        "    return int(status.split('RssFile:')[1].split()[0]) * 1024\n"
        "before = file_bytes()\n"
        "page_out()\n"
        "assert file_bytes() < before / 2\n"
        "assert pa.array(['x', None]).dictionary_encode().to_pylist() == ['x', None]\n"
    )
