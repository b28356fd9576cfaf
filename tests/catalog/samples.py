"""Strategies for rows and changes, and the samples of the golden file.

What a new version adds gets a new file, written once:
    python -m tests.catalog.samples 2 > tests/golden/catalog_changes_v2.txt
"""

import sys

from hypothesis import strategies as st

from bourn.catalog.changes import (
    Change,
    CountUsage,
    DropBasin,
    DropStream,
    DropToken,
    PutBasin,
    PutStream,
    PutToken,
    encode_change,
)
from bourn.catalog.rows import BasinRow, StreamRow
from bourn.catalog.tokens import TokenRow, root_row
from bourn.catalog.usage import UsageLine
from bourn.limits import U64_MAX
from bourn.model.access import (
    ALL,
    Match,
    Op,
    OpGroups,
    ReadWrite,
    ResourceSet,
    Scope,
)
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
from tests.model.tokens import scopes, token_ids

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
token_rows = st.builds(
    TokenRow,
    id=token_ids,
    digest=st.binary(min_size=32, max_size=32),
    scope=scopes,
    auto_prefix=st.booleans(),
    created_at_ms=instants,
    expires_at=st.none() | st.tuples(st.integers(0, 2**38), st.integers(0, 10**9 - 1)),
)
u32s = st.integers(0, 2**32 - 1)
texts = st.text(max_size=20)
changes = st.one_of(
    st.builds(PutBasin, basin_rows),
    st.builds(DropBasin, ids),
    st.builds(PutStream, stream_rows),
    st.builds(DropStream, ids, ids),
    st.builds(PutToken, token_rows),
    st.builds(DropToken, token_ids),
    st.builds(
        CountUsage,
        ids,
        st.lists(st.builds(UsageLine, u32s, texts, texts, texts, ids), max_size=3),
        st.lists(st.tuples(texts, u32s, ids), max_size=3),
        st.lists(st.tuples(ids, u32s, ids), max_size=3),
    ),
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


GOLDEN_2: dict[str, Change] = {
    "root-token": PutToken(root_row(bytes(range(32)), NOW_MS)),
    "full-token": PutToken(
        TokenRow(
            id="svc/é",
            digest=bytes(32),
            scope=Scope(
                ResourceSet(Match.EXACT, "my-basin"),
                ResourceSet(Match.PREFIX, "tenant-1/"),
                ALL,
                OpGroups(stream=ReadWrite(read=True)),
                (Op.APPEND, Op.ISSUE_ACCESS_TOKEN),
            ),
            auto_prefix=True,
            created_at_ms=NOW_MS,
            expires_at=(253_402_300_799, 999_999_999),
        )
    ),
    "drop-token": DropToken("svc/é"),
    "count-usage": CountUsage(
        7,
        [
            UsageLine(28_333_333, "my-basin", "read-ops", "unary", 3),
            UsageLine(28_333_334, "", "account-ops", "list-basins", U64_MAX),
        ],
        [("my-basin", 472_222, 1_048_576)],
        [(U64_MAX, 28_333_333, 0)],
    ),
}
SAMPLES = {1: GOLDEN, 2: GOLDEN_2}


def golden_text(version: int) -> str:
    """One line per sample: its name and its bytes in hex."""
    samples = SAMPLES[version].items()
    return "".join(f"{name} {encode_change(change).hex()}\n" for name, change in samples)


if __name__ == "__main__":
    print(golden_text(int(sys.argv[1])), end="")
