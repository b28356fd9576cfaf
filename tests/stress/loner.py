"""One stream and one client: every answer is what a read that nothing was kept for gives."""

from typing import Final

from tests.stress.actors import FRESH, Stage
from tests.stress.ledger import Found, Ledger, Pen, ack_of, append, forms, read, records_of, trim
from tests.stress.speakers import CLOCK, Ask, Http1

QUERIES: Final = (
    "seq_num={at}",
    "seq_num={at}&clamp=true",
    "seq_num={at}&bytes={size}",
    "seq_num=0&count=5",
    "seq_num=0&until={now_ms}",
    "seq_num=0&until=1",
    "seq_num=0&wait=0",
    "tail_offset={few}",
    "tail_offset={few}&count={few}",
    "timestamp=0&count=3",
    "timestamp={now_ms}",
    "count=2",
    "seq_num=18446744073709551615",
    "seq_num=x",
    "",
)


class Loner:
    """What it knows of its stream."""

    def __init__(self, stage: Stage, name: str) -> None:
        self._stage = stage
        self._rng = stage.rng(name)
        self._ledger = Ledger(stage.ledgers[0].basin, name)
        self._pen = Pen(name, self._rng)
        self._made = Ask("PUT", f"/v1/streams/{name}", self._ledger.fields)
        self._quick, self._fresh = Http1(stage.port), Http1(stage.port)
        self._known: list[Found] = []
        self._first = 0  # that is not trimmed
        self._tail = 0

    async def run(self) -> None:
        """Act until the play is over."""
        assert (await self._fresh.ask(self._made)).status == 201
        while not self._stage.is_over:
            dice = self._rng.random()
            if dice < 0.03:
                await self._quick.close()
            elif dice < 0.05:
                await self._recreate()
            elif dice < 0.08:
                await self._trim()
            elif dice < 0.35:
                await self._append()
            else:
                await self._compare()
        await self._fresh.close()
        await self._quick.close()

    async def _recreate(self) -> None:
        assert (await self._fresh.ask(self._made._replace(method="DELETE"))).status == 202
        reply = await self._quick.ask(read(self._ledger, "seq_num=0"))
        assert reply.status in {404, 409}, reply
        while (reply := await self._fresh.ask(self._made)).status != 201:
            assert reply.status == 409, reply
            await CLOCK.sleep(0.01)
        self._known, self._first, self._tail = [], 0, 0
        self._stage.count("recreated")

    async def _trim(self) -> None:
        point = self._rng.randrange(self._first, self._tail + 1)
        start, self._tail, _ = ack_of(await self._quick.ask(trim(self._ledger, point)))
        self._known.append(Found(start, ""))
        self._first = point
        self._known = [record for record in self._known if record.seq_num >= point]
        self._stage.count("trimmed")

    async def _append(self) -> None:
        bodies, rng = self._pen.bodies(), self._rng
        right = {"match_seq_num": self._tail} if rng.random() < 0.5 else {}
        start, end, _ = ack_of(await self._quick.ask(append(self._ledger, bodies, rng, **right)))
        assert (start, end) == (self._tail, self._tail + len(bodies))
        self._known += [Found(start + at, body) for at, body in enumerate(bodies)]
        self._tail = end

    async def _compare(self) -> None:
        rng = self._rng
        query = rng.choice(QUERIES).format(
            at=rng.randrange(self._tail + 2),
            size=rng.randrange(900),
            few=rng.randrange(9),
            now_ms=CLOCK.now_ms() - rng.randrange(3000),
        )
        more = [field for field in forms(rng) if field[0] != "accept-encoding"]
        asked = read(self._ledger, query, *more)
        expected = await self._fresh.ask(asked._replace(fields=(*asked.fields, FRESH)))
        for _ in range(2):
            found = await self._quick.ask(asked)
            assert (found.status, found.body) == (expected.status, expected.body), query
        if expected.status == 200:
            self._check(records_of(expected))
        self._stage.count(f"compared {expected.status}")

    def _check(self, records: list[Found]) -> None:
        known = {record.seq_num: record.body for record in self._known}
        for at, record in enumerate(records):
            assert record.seq_num == records[0].seq_num + at
            assert known[record.seq_num] in {"", record.body}


async def loner(stage: Stage, name: str) -> None:
    """Has a stream to itself."""
    await Loner(stage, name).run()
