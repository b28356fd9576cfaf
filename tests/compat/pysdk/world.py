"""What a scenario gets: a client, names nobody else uses, and a server that it may end."""

import asyncio
import json
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from typing import Any, Generic, Self, TypeVar

from s2_sdk import (
    S2,
    AppendInput,
    AppendRetryPolicy,
    Compression,
    Endpoints,
    Record,
    Retry,
    S2Basin,
    S2ServerError,
    S2Stream,
    SequencedRecord,
)

E = TypeVar("E", bound=Exception)

NUMBERS = count(1)
PATIENCE_SECS = 60.0
POLL_SECS = 0.02


class World:
    def __init__(self, compression: str) -> None:
        self._compression = Compression(compression)
        self.s2 = self.client()
        self._others: list[S2] = []
        self.last_basin = ""

    def client(
        self, *, policy: AppendRetryPolicy = AppendRetryPolicy.ALL, attempts: int = 3
    ) -> Any:
        """A client; many attempts let it wait for a server that is being started."""
        return S2(
            "any token",
            endpoints=Endpoints.from_env(),
            compression=self._compression,
            retry=Retry(
                max_attempts=attempts,
                min_base_delay=timedelta(milliseconds=50),
                max_base_delay=timedelta(milliseconds=500),
                append_retry_policy=policy,
            ),
        )

    def patient(self, policy: AppendRetryPolicy = AppendRetryPolicy.ALL) -> Any:
        """A client that outlives a restart."""
        self._others.append(self.client(policy=policy, attempts=100))
        return self._others[-1]

    async def patient_stream(self, policy: AppendRetryPolicy = AppendRetryPolicy.ALL) -> S2Stream:
        """A stream for a client that outlives a restart."""
        made = await self.stream()
        return self.patient(policy).basin(self.last_basin).stream(made.name)

    def name(self) -> str:
        return f"python-{os.getpid()}-{next(NUMBERS)}"

    async def basin(self, **config: Any) -> S2Basin:
        self.last_basin = self.name()
        await self.s2.create_basin(self.last_basin, **config)
        return self.s2.basin(self.last_basin)

    async def stream(self, **config: Any) -> S2Stream:
        basin = await self.basin()
        name = self.name()
        await basin.create_stream(name, **config)
        return basin.stream(name)

    async def restart(self, ending: str) -> None:
        """Have the server ended and started again; returns when it is there."""
        print(json.dumps({"ask": ending}), flush=True)
        await asyncio.to_thread(sys.stdin.readline)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (self.s2, *self._others):
            await client.close()


def batch(*bodies: bytes, **conditions: Any) -> AppendInput:
    return AppendInput(records=[Record(body=body) for body in bodies], **conditions)


def bodies_of(records: list[SequencedRecord]) -> list[bytes]:
    return [record.body for record in records]


class Failure(Generic[E]):
    """What a block failed with."""

    error: E


@contextmanager
def fails(kind: type[E]) -> Iterator[Failure[E]]:
    """The block must fail with just that."""
    failure = Failure[E]()
    try:
        yield failure
    except kind as error:
        failure.error = error
    else:
        raise AssertionError(f"did not fail with {kind.__name__}")


async def refused(call: Awaitable[object], status: int, code: str) -> None:
    """The server must answer with just that."""
    with fails(S2ServerError) as failure:
        await call
    error = failure.error
    assert (error.status_code, error.code) == (status, code), repr(error)


async def eventually(call: Callable[[], Awaitable[bool]]) -> None:
    """Wait for something that the server does in its own time."""
    async with asyncio.timeout(PATIENCE_SECS):
        while not await call():
            await asyncio.to_thread(threading.Event().wait, POLL_SECS)
