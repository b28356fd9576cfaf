"""docs/querying.md: every block is run, on a table that the pipeline made, and prints what it says.

With BOURN_DOCS_WRITE=1 the outputs in the document are written anew.
"""

import io
import os
import random
import re
from contextlib import redirect_stdout
from pathlib import Path

import orjson
import pytest
from deltalake import DeltaTable

from bourn.bucket.local import LocalBucket
from bourn.bucket.port import Bucket
from bourn.layout.history.delta import HISTORY_PREFIX
from bourn.layout.history.schema import SCHEMA
from bourn.model.config import BasinConfig, Infinite, StreamConfig, Timestamping
from bourn.model.record import Record
from bourn.model.resource import CreateBasin, CreateStream
from bourn.pipeline.place import Place
from bourn.pipeline.runner import Runner
from tests.pipeline.harness import CLOCK, InProcessTier, quiet
from tests.sparks import LOCAL
from tests.support import batch, node_on, run

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "querying.md"
BLOCK = re.compile(r"```python\n(.*?)```\n(?:```text\n(.*?)```\n)?", re.DOTALL)
BASIN = "web-shop"
NOON = 1_767_268_800_000
MINUTE = 60_000
ORDERS = (
    ("ada", "placed", 40),
    ("bob", "placed", 15),
    ("ada", "paid", 40),
    ("cid", "placed", 99),
    ("bob", "cancelled", 15),
    ("ada", "shipped", 40),
)


async def open_shop(bucket: Bucket) -> None:
    config = StreamConfig(retention_policy=Infinite(), timestamping=Timestamping(uncapped=True))
    async with node_on(bucket) as node:
        await node.create_basin(CreateBasin(BASIN, BasinConfig(default_stream_config=config)))
        for stream in ("orders", "clicks", "sensors"):
            await node.create_stream(BASIN, CreateStream(stream))
        for number, (customer, state, eur) in enumerate(ORDERS):
            body = orjson.dumps({"customer": customer, "state": state, "eur": eur})
            headers = ((b"customer", customer.encode()),)
            record = Record(body, headers, NOON + 10 * MINUTE * number)
            await node.append(BASIN, "orders", batch(record))
        fence = Record(b"token-1", ((b"", b"fence"),), NOON)
        pages = [Record(b"page %d" % n, (), NOON + 15 * MINUTE * n) for n in range(4)]
        await node.append(BASIN, "clicks", batch(fence, *pages))
        readings = (Record(b"\x00\xff\x7f", (), 1), Record(b"", (), 2**64 - 1))
        await node.append(BASIN, "sensors", batch(*readings))


def blocks_run(text: str) -> list[tuple[str, str, str]]:
    """The code of every block, what it shows, and what it prints."""
    names: dict[str, object] = {}
    found: list[tuple[str, str, str]] = []
    for code, shown in BLOCK.findall(text):
        output = io.StringIO()
        with redirect_stdout(output):
            exec(compile(code, str(DOCUMENT), "exec"), names)
        printed = "\n".join(line.rstrip() for line in output.getvalue().splitlines()).strip("\n")
        found.append((code, shown, f"{printed}\n"))
    return found


@pytest.mark.slow
def test_every_block_of_the_document_prints_what_is_shown(spark, moto, tmp_path, monkeypatch):
    place = Place("file", str(tmp_path / "bourn-data"), "", "", "")
    remote = Place("s3", "shop-bucket", "data", moto.endpoint, "us-east-1")
    moto.make_bucket("shop-bucket")
    spark.context()  # the document's Spark is this one

    async def fill():
        bucket, copy = place.open(), remote.open()
        await open_shop(bucket)
        runner = Runner(
            place,
            LOCAL,
            CLOCK,
            random.Random(),
            listen=lambda _: None,
            told=lambda _: None,
            jobs=["tier"],
            spark=spark,
        )
        await runner.once()
        await runner.close()
        async for info in bucket.list(HISTORY_PREFIX):
            await copy.put(info.key, await bucket.get(info.key))
        for one in (bucket, copy):
            await one.close()

    run(fill())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    monkeypatch.setenv("COLUMNS", "120")
    text = DOCUMENT.read_text()
    found = blocks_run(text)
    if os.environ.get("BOURN_DOCS_WRITE"):
        for code, shown, printed in found:
            text = text.replace(
                f"{code}```\n```text\n{shown}```", f"{code}```\n```text\n{printed}```"
            )
        DOCUMENT.write_text(text)
    assert len(found) >= 15
    assert [(code, shown) for code, shown, _ in found] == [
        (code, printed) for code, _, printed in found
    ]


def test_a_filter_on_any_column_finds_its_rows(tmp_path):
    async def fill():
        bucket = LocalBucket(tmp_path)
        await open_shop(bucket)
        await InProcessTier(bucket).run(quiet())
        await bucket.close()

    run(fill())
    table = DeltaTable(tmp_path / "history")
    rows = table.to_pyarrow_table().to_pylist()
    assert len(rows) == 13
    for column in SCHEMA.names:
        if column == "headers":
            continue
        value = rows[0][column]
        wanted = sum(1 for row in rows if row[column] == value)
        found = table.to_pyarrow_table(filters=[(column, "=", value)])
        assert found.num_rows == wanted, column
