"""Strategies for rows and changes, and the samples of the golden file.

A new version of the format gets a new file, written once:
    python -m tests.catalog.samples > tests/golden/catalog_changes_v1.txt
"""

from hypothesis import strategies as st

from bourn.catalog.changes import (
    Change,
    DropBasin,
    DropStream,
    PutBasin,
    PutStream,
    encode_change,
)
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.limits import U64_MAX
from bourn.model.config import (
    Age,
    BasinConfig,
    Cipher,
    DeleteOnEmpty,
    Infinite,
    ResolvedStreamConfig,
    ResolvedTimestamping,
    StreamConfig,
    Timestamping,
    TimestampMode,
)
from bourn.model.instants import MS_MAX
from tests.model.configs import basin_configs, resolved_configs

NOW_MS = 1_700_000_000_123

ids = st.integers(0, 9) | st.integers(0, U64_MAX)
instants = st.integers(0, MS_MAX)
keys = st.binary(min_size=16, max_size=16)
stream_names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1).filter(
    lambda name: len(name.encode()) <= 512
)
basin_names = st.from_regex(r"[a-z0-9][a-z0-9-]{6,46}[a-z0-9]", fullmatch=True)

basin_rows = st.builds(
    BasinRow,
    id=ids,
    name=basin_names,
    config=basin_configs,
    location=st.none() | st.sampled_from(["local", "aws:us-east-1"]),
    created_at_ms=instants,
    deleted_at_ms=st.none() | instants,
    idempotency_key=st.none() | keys,
)
stream_rows = st.builds(
    StreamRow,
    id=ids,
    basin_id=ids,
    name=stream_names,
    config=resolved_configs,
    cipher=st.none() | st.sampled_from(Cipher),
    created_at_ms=instants,
    deleted_at_ms=st.none() | instants,
    idempotency_key=st.none() | keys,
)
changes = st.one_of(
    st.builds(PutBasin, basin_rows),
    st.builds(DropBasin, ids),
    st.builds(PutStream, stream_rows),
    st.builds(DropStream, ids, ids),
)

GOLDEN: dict[str, Change] = {
    "plain-basin": PutBasin(BasinRow(1, "my-basin", BasinConfig(), "local", NOW_MS)),
    "full-basin": PutBasin(
        BasinRow(
            id=2**40,
            name="my-other-basin",
            config=BasinConfig(
                default_stream_config=StreamConfig(
                    storage_class="standard",
                    retention_policy=Infinite(),
                    timestamping=Timestamping(mode=TimestampMode.ARRIVAL),
                    delete_on_empty=DeleteOnEmpty(60),
                ),
                stream_cipher=Cipher.AEGIS_256,
                create_stream_on_append=True,
                create_stream_on_read=True,
            ),
            location=None,
            created_at_ms=NOW_MS,
            deleted_at_ms=NOW_MS + 1,
            idempotency_key=bytes(range(16)),
        )
    ),
    "drop-basin": DropBasin(1),
    "plain-stream": PutStream(
        StreamRow(7, 1, "events/é", ResolvedStreamConfig(), cipher=None, created_at_ms=NOW_MS)
    ),
    "full-stream": PutStream(
        StreamRow(
            id=U64_MAX,
            basin_id=2**40,
            name="s",
            config=ResolvedStreamConfig(
                storage_class="standard",
                retention_policy=Age(U64_MAX),
                timestamping=ResolvedTimestamping(TimestampMode.CLIENT_REQUIRE, uncapped=True),
                delete_on_empty=DeleteOnEmpty(U64_MAX),
            ),
            cipher=Cipher.AES_256_GCM,
            created_at_ms=NOW_MS,
            deleted_at_ms=MS_MAX,
            idempotency_key=bytes(range(16)),
        )
    ),
    "drop-stream": DropStream(7, 1),
}


def golden_text() -> str:
    """One line per sample: its name and its bytes in hex."""
    return "".join(f"{name} {encode_change(change).hex()}\n" for name, change in GOLDEN.items())


if __name__ == "__main__":
    print(golden_text(), end="")
