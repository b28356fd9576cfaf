"""Appends clicks with S2's own SDK: `pip install s2-sdk`. Nothing of Bourn is needed here."""

import argparse
import asyncio
import json
import random
from collections.abc import Iterator

from s2_sdk import S2, AppendInput, Endpoints, Record

PAGES = ("/", "/pricing", "/docs", "/docs/start", "/blog")
START_MS = 1_767_225_600_000  # the first moment of 2026


def clicks(count: int, seed: int) -> Iterator[dict[str, object]]:
    """Yield clicks in the order of their time, ten a second, some pages more liked than others."""
    rng = random.Random(seed)
    for number in range(count):
        page = rng.choices(PAGES, weights=(8, 3, 5, 2, 1))[0]
        user = f"user-{rng.randrange(200)}"
        yield {"at": START_MS + 100 * number + rng.randrange(100), "page": page, "user": user}
    # One more, much later: with it, everybody can tell that all windows before are over.
    yield {"at": START_MS + 100 * count + 600_000, "page": "/end", "user": "nobody"}


async def main(endpoint: str, basin: str, stream: str, count: int, seed: int) -> None:
    here = Endpoints(account=endpoint, basin=endpoint)
    async with S2("any token", endpoints=here) as s2:
        target = s2.basin(basin).stream(stream)
        batch: list[Record] = []
        for click in clicks(count, seed):
            batch.append(Record(body=json.dumps(click).encode()))
            if len(batch) == 100:
                await target.append(AppendInput(records=batch))
                batch = []
                await asyncio.sleep(0.05)  # noqa: TID251  it stands alone
        if batch:
            await target.append(AppendInput(records=batch))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--endpoint", default="http://127.0.0.1:8080")
    parser.add_argument("--basin", default="clickstream")
    parser.add_argument("--stream", default="clicks")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(**vars(parser.parse_args())))
