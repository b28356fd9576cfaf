"""Clients that keep the ledger: each append, read and question is noted before and after."""

import asyncio
from collections import deque
from random import Random
from typing import Any

from bourn.engine.appender import Appender
from bourn.errors import BournError, ResourceError, Unwritten
from bourn.layout.records import encode_records
from bourn.log.cursor import make_request
from bourn.model.record import AppendAck, Record, SequencedRecord
from tests.faults.ledger import Batch
from tests.faults.world import Gone, Host, World
from tests.support import BASIN

Pending = tuple[Batch, asyncio.Future[AppendAck]]


class Client:
    """One client of one stream."""

    def __init__(self, world: World, stream: str, name: str | None = None) -> None:
        self.world = world
        self.stream = stream  # as the node knows it
        self.book = name or stream  # as the ledger knows it: one for each life of the name
        self._source = world.ledger.new_source()

    async def append(
        self,
        host: Host,
        *bodies: bytes,
        commands: tuple[Record, ...] = (),
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> AppendAck | Exception:
        """Append one batch; returns its ack, or why there is none."""
        ledger = self.world.ledger
        batch = ledger.submitting(
            self.book,
            self._source,
            bodies,
            *commands,
            match_seq_num=match_seq_num,
            fencing_token=fencing_token,
        )
        work = host.node.append(
            BASIN,
            self.stream,
            encode_records(batch.records),
            match_seq_num=match_seq_num,
            fencing_token=fencing_token,
        )
        return await self._settle(host, batch, work)

    async def _settle(self, host: Host, batch: Batch, work: Any) -> AppendAck | Exception:
        ledger = self.world.ledger
        try:
            ack: AppendAck = await self.world.ask(host, work, f"append of batch {batch.number}")
        except (BournError, Gone) as error:
            ledger.failed(batch, error)
            return error
        ledger.acked(batch, ack)
        return ack

    async def read(self, host: Host, seq_num: int, **limits: int) -> list[SequencedRecord]:
        """Read one batch; what it gets is noted."""
        request = make_request(seq_num=seq_num, **limits)  # type: ignore[arg-type]
        work = host.node.read(BASIN, self.stream, request)
        batch = await self.world.ask(host, work, f"read of {self.stream} from {seq_num}")
        records = batch.records()
        self.world.ledger.seen(self.book, records, seq_num)
        return records

    async def check_tail(self, host: Host) -> int:
        """Ask for the tail; while the node leads, it may not be older than what was told."""
        ledger = self.world.ledger
        floor = ledger.book(self.book).tail
        work = host.node.check_tail(BASIN, self.stream)
        tail = (await self.world.ask(host, work, f"tail of {self.stream}")).seq_num
        if host is self.world.newest:
            ledger.answered_tail(self.book, tail, floor)
        return tail

    async def follow(self, host: Host, seq_num: int, records_max: int) -> int:
        """Follow until the session ends or has given enough; returns where to go on."""

        async def session() -> int:
            position = seq_num
            request = make_request(seq_num=seq_num, wait=2)
            async with host.node.read_session(BASIN, self.stream, request) as batches:
                async for batch in batches:
                    records = batch.records()
                    self.world.ledger.seen(self.book, records, position)
                    if records:
                        position = records[-1].seq_num + 1
                    if position - seq_num >= records_max:
                        break
            return position

        return await self.world.ask(host, session(), f"session on {self.stream} from {seq_num}")

    async def read_all(self, host: Host) -> list[SequencedRecord]:
        """Everything that is there, by unary reads."""
        records: list[SequencedRecord] = []
        position = 0
        while True:
            try:
                found = await self.read(host, position)
            except Unwritten:
                return records
            records += found
            if not found:
                return records
            position = found[-1].seq_num + 1

    async def check(self, host: Host) -> None:
        """Look at the whole stream, and judge it."""
        tail = await self.check_tail(host)
        self.world.ledger.check(self.book, await self.read_all(host), tail)


class Pipeline:
    """An append session: batches go out before the acks of those before them are in."""

    def __init__(self, client: Client, host: Host, appender: Appender) -> None:
        self._client = client
        self._host = host
        self._appender = appender
        self._source = client.world.ledger.new_source()
        self._pending: deque[Pending] = deque()
        self.has_failed = False

    @classmethod
    async def open(cls, client: Client, host: Host) -> "Pipeline":
        work = host.node.appender(BASIN, client.stream)
        return cls(client, host, await client.world.ask(host, work, "open a session"))

    @property
    def next_seq_num(self) -> int:
        """What a condition must say to hold for the next batch."""
        return self._appender._stream.state.next_seq_num

    @property
    def fencing_token(self) -> str:
        """The token that the next batch will be judged by."""
        return self._appender._stream.state.fencing_token

    async def submit(
        self,
        *bodies: bytes,
        commands: tuple[Record, ...] = (),
        match_seq_num: int | None = None,
        fencing_token: str | None = None,
    ) -> None:
        """Submit one batch, waiting for room alone."""
        world = self._client.world
        batch = world.ledger.submitting(
            self._client.book,
            self._source,
            bodies,
            *commands,
            pipelined=True,
            match_seq_num=match_seq_num,
            fencing_token=fencing_token,
        )
        encoded = encode_records(batch.records)
        try:
            await world.ask(self._host, self._appender.room_for(encoded), "room for a batch")
            future = self._appender.submit(
                encoded, match_seq_num=match_seq_num, fencing_token=fencing_token
            )
        except (BournError, Gone) as error:
            world.ledger.failed(batch, error)
            self.has_failed = True
        else:
            self._pending.append((batch, future))

    async def settle(self, *, leave: int = 0) -> None:
        """Take the acks in, in order, until only `leave` batches are under way."""
        while len(self._pending) > leave:
            batch, future = self._pending.popleft()
            outcome = await self._client._settle(self._host, batch, future)
            self.has_failed |= isinstance(outcome, Exception)

    def close(self) -> None:
        self._appender.close()


async def serving(world: World, rng: Random | None = None) -> Host:
    """The newest node that serves, waiting until there is one.

    With `rng`, now and then an older one that does not know yet that it was replaced.
    """
    while True:
        hosts = [host for host in world.hosts if host.serves]
        if hosts:
            return rng.choice(hosts) if rng is not None and rng.random() < 0.3 else hosts[-1]
        await world.clock.sleep(0.4)


def random_bodies(rng: Random) -> list[bytes]:
    """The bodies of one batch: few and small, now and then many or large."""
    count = rng.choice((1, 1, 1, 2, 3, 8))
    size = rng.choice((0, 5, 20, 100, 700))
    return [b"x" * rng.randint(0, size) for _ in range(count)]


async def is_there(world: World, host: Host, stream: str) -> bool:
    """Whether the catalog has the stream, and does not delete it."""
    try:
        await world.ask(host, host.node.stream_config(BASIN, stream), f"config of {stream}")
    except ResourceError:
        return False
    return True
