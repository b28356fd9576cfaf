"""What a server does to its own process, each in a process of its own."""

import subprocess
import sys


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
