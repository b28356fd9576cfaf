"""Streams as a snapshot keeps them, drawn at random; in one basin no name comes twice."""

from hypothesis import strategies as st

from bourn.layout.runs import NEVER_S, RunIndex
from bourn.layout.snapshot import StreamImage
from bourn.limits import U64_MAX

U64 = st.integers(0, U64_MAX) | st.integers(0, 3)
U32 = st.integers(0, 2**32 - 1) | st.just(NEVER_S)
# Few letters, so that names share prefixes; the last two sort otherwise in UTF-16.
NAMES = st.text("ab/é\uffff\U0001f600", min_size=1, max_size=6)


@st.composite
def run_bytes(draw: st.DrawFn) -> bytes:
    runs = RunIndex()
    commit = draw(st.integers(0, 50))
    for step in range(draw(st.integers(0, 3))):
        timestamp = 1000 * step
        runs.append(10 * step, timestamp, timestamp, commit, 64, 100, 7, 90, draw(U32))
        commit += draw(st.integers(1, 9))
    return runs.to_bytes()


def image(stream_id: int, basin_id: int, name: str, **fields: int | str | bytes) -> StreamImage:
    """Make a stream of a given identity, empty but for `fields`."""
    values: dict[str, int | str | bytes] = {
        "row": f"row of {name}".encode(),
        "next_seq_num": 0,
        "last_timestamp": 0,
        "fencing_token": "",
        "trim_point": 0,
        "last_write_ms": 0,
        "runs": b"",
        "next_check_s": NEVER_S,
    }
    return StreamImage(stream_id, basin_id, name, **(values | fields))  # type: ignore[arg-type]


@st.composite
def images(draw: st.DrawFn, most: int = 12) -> list[StreamImage]:
    """Draw streams of a few basins, in no order."""
    basins = st.sampled_from([0, 1, 7, U64_MAX])
    keys = draw(st.lists(st.tuples(basins, NAMES), max_size=most, unique=True))
    ids = draw(st.lists(U64, min_size=len(keys), max_size=len(keys), unique=True))
    return [
        StreamImage(
            id=stream_id,
            basin_id=basin_id,
            name=name,
            row=draw(st.binary(max_size=8)),
            next_seq_num=draw(U64),
            last_timestamp=draw(U64),
            fencing_token=draw(st.text(max_size=3)),
            trim_point=draw(U64),
            last_write_ms=draw(U64),
            runs=draw(run_bytes()),
            next_check_s=draw(U32),
        )
        for stream_id, (basin_id, name) in zip(ids, keys, strict=True)
    ]


def in_order(streams: list[StreamImage]) -> list[StreamImage]:
    """Sort as the columns must be: by the bytes of the names."""
    return sorted(streams, key=lambda stream: (stream.basin_id, stream.name.encode()))
