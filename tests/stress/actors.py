"""Who does what to a server, all at once. Each is a coroutine that ends when the play is over."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Final

from httpunk import HTTPunkError

from tests.http.frames import TERMINAL, Frame, frame
from tests.stress.ledger import (
    Found,
    Ledger,
    Pen,
    Promise,
    ack_of,
    append,
    forms,
    message,
    of_batch,
    of_json,
    read,
    records_of,
)
from tests.stress.speakers import CLOCK, PATIENCE_SECS, Ask, Http1, Http2, Incoming, as_http1
from tests.wire.schema import ReadBatch

Speaker = Http1 | Http2
FRESH: Final = ("x-fresh", "1")  # which no quick way knows
SESSION: Final = ("content-type", "s2s/proto")
EVENTS: Final = ("accept", "text/event-stream")
REST_SECS: Final = 1.3  # longer than a connection stays on the quick way


class Stage:
    """What all actors share."""

    def __init__(self, port: int, ledgers: list[Ledger], seed: int) -> None:
        self.port = port
        self.ledgers = ledgers
        self.is_over = False
        self.did: dict[str, int] = {}
        self._seed = seed

    def count(self, what: str) -> None:
        """Note that something was done."""
        self.did[what] = self.did.get(what, 0) + 1

    def rng(self, who: str) -> random.Random:
        """Dice of one's own."""
        return random.Random(f"{self._seed} {who}")

    def speaker(self, rng: random.Random) -> Speaker:
        """A new connection, of either version."""
        return Http1(self.port) if rng.random() < 0.6 else Http2(self.port)


# Unary calls on streams that all share


async def sharer(stage: Stage, name: str) -> None:
    """Appends to streams that others append to, and reads its own writes."""
    rng = stage.rng(name)
    pen = Pen(name, rng)
    speaker = stage.speaker(rng)
    while not stage.is_over:
        if rng.random() < 0.1:
            await speaker.close()
            speaker = stage.speaker(rng)
        await _call(stage, speaker, rng, pen)
    await speaker.close()


async def crowd(stage: Stage, name: str) -> None:
    """Brings the number of busy connections over the one from which there are lanes, and back."""
    rng = stage.rng(name)

    async def one(who: str) -> None:
        wire, pen = Http1(stage.port), Pen(who, rng)
        for _ in range(rng.randrange(5, 60)):
            if not stage.is_over:
                await _call(stage, wire, rng, pen)
        await wire.close()

    while not stage.is_over:
        many = rng.choice((4, 20, 24, 40))
        started = stage.did.get("crowd", 0)
        await asyncio.gather(*(one(f"{name}-{started}-{at}") for at in range(many)))
        stage.count("crowd")


async def _call(stage: Stage, speaker: Speaker, rng: random.Random, pen: Pen) -> None:
    """Do any of the things that one does with a unary call."""
    ledger = rng.choice(stage.ledgers)
    dice = rng.random()
    if dice < 0.02:
        await _leave(stage, ledger, speaker, rng, pen)
    elif dice < 0.1:
        conditions = rng.choice(({"match_seq_num": 2**40}, {"fencing_token": "nobody's"}))
        reply = await speaker.ask(append(ledger, pen.bodies(), rng, **conditions))
        assert reply.status == 412, reply
        stage.count("refused")
    elif dice < 0.11:
        await CLOCK.sleep(REST_SECS)
    elif dice < 0.2 and isinstance(speaker, Http1):
        await _pipeline(stage, ledger, speaker, rng, pen)
    elif dice < 0.25 and isinstance(speaker, Http1):
        await _say_oddly(stage, ledger, speaker, rng, pen)
    else:
        await _append_and_read(stage, ledger, speaker, rng, pen)


async def _append_and_read(
    stage: Stage, ledger: Ledger, speaker: Speaker, rng: random.Random, pen: Pen
) -> None:
    known, promise = ledger.tail, ledger.offer(pen.bodies())
    start, end, tail = ack_of(await speaker.ask(append(ledger, promise.bodies, rng)))
    assert known <= start < end <= tail
    ledger.acked(promise, start, end)
    stage.count("append")
    if rng.random() < 0.5:
        query = f"seq_num={start}&count={end - start}"
        found = records_of(await speaker.ask(read(ledger, query, *forms(rng))))
        assert found == [Found(start + at, body) for at, body in enumerate(promise.bodies)]
        stage.count("read")
    known = ledger.tail
    if rng.random() < 0.2:
        found = records_of(await speaker.ask(read(ledger, "tail_offset=3", *forms(rng))))
        assert found[-1].seq_num >= known - 1, "a stale answer"
    elif rng.random() < 0.1:
        reply = await speaker.ask(Ask("GET", f"{ledger.path}/tail", ledger.fields))
        assert json.loads(reply.body)["tail"]["seq_num"] >= known


async def _pipeline(
    stage: Stage, ledger: Ledger, http1: Http1, rng: random.Random, pen: Pen
) -> None:
    """Several requests at once on one connection, some of them not plain."""
    said = b""
    promises: list[Promise | None] = []
    for _ in range(rng.randrange(2, 12)):
        if rng.random() < 0.7:
            promise = ledger.offer(pen.bodies())
            promises.append(promise)
            said += as_http1(append(ledger, promise.bodies, rng))
        else:
            promises.append(None)
            more = (FRESH,) if rng.random() < 0.05 else forms(rng)
            said += as_http1(read(ledger, "tail_offset=1&count=1&clamp=true", *more))
    reached = ledger.tail
    await http1.say(said, rng.choice((0, 0, 7, 500)))
    for expected in promises:
        reply = await http1.answer()
        if expected is not None:
            start, end, _ = ack_of(reply)
            assert start >= reached
            reached = end
            ledger.acked(expected, start, end)
        elif reached:
            assert records_of(reply)[-1].seq_num >= reached - 1
    stage.count("pipelined")


async def _say_oddly(
    stage: Stage, ledger: Ledger, http1: Http1, rng: random.Random, pen: Pen
) -> None:
    """One append in single bytes, behind a 100, as the connection's last, or with a pause."""
    promise = ledger.offer(pen.bodies(size_max=60))
    asked = append(ledger, promise.bodies, rng)
    data = as_http1(asked)
    match rng.randrange(4):
        case 0:
            await http1.say(data, 1)
        case 1:
            data = as_http1(asked, ("expect", "100-continue"))
            await http1.say(data[: len(data) - len(asked.body)])
            async with asyncio.timeout(PATIENCE_SECS):
                assert (await http1.head())[0] == 100
            await http1.say(asked.body)
        case 2:
            await http1.say(as_http1(asked, ("connection", "close")))
        case _:
            cut = rng.randrange(len(data))
            await http1.say(data[:cut])
            await CLOCK.sleep(rng.choice((0.0, 0.01, 0.1, REST_SECS)))
            await http1.say(data[cut:])
    start, end, _ = ack_of(await http1.answer())
    ledger.acked(promise, start, end)
    stage.count("said oddly")


async def _leave(
    stage: Stage, ledger: Ledger, speaker: Speaker, rng: random.Random, pen: Pen
) -> None:
    """Append, and be gone before the ack."""
    asked = append(ledger, ledger.offer(pen.bodies()).bodies, rng)
    if isinstance(speaker, Http1):
        await speaker.say(as_http1(asked))
    else:
        asking = asyncio.ensure_future(speaker.ask(asked))
        await CLOCK.sleep(0.001)
        asking.cancel()
        with suppress(asyncio.CancelledError, HTTPunkError, OSError):
            await asking
    await speaker.reset()
    pen.take_another()
    stage.count("left")


# Sessions


async def session(stage: Stage, name: str) -> None:
    """Opens append sessions, has many batches on their way, ends them in every way."""
    rng = stage.rng(name)
    pen = Pen(name, rng)
    while not stage.is_over:
        ledger = rng.choice(stage.ledgers)
        speaker = stage.speaker(rng)
        asked = Ask("POST", ledger.path, (*ledger.fields, SESSION))
        call = await speaker.open(asked, is_whole=False)
        assert call.status == 200
        batches = [pen.bodies() for _ in range(rng.choice((1, 5, 40, 300)))]
        is_refused, is_left = rng.random() < 0.2, rng.random() < 0.1
        talking = asyncio.ensure_future(_talk(call, batches, rng, is_refused=is_refused))
        try:
            heard = len(batches) // 2 if is_left else len(batches) + 1
            async with asyncio.timeout(PATIENCE_SECS):
                await _hear(call, ledger, batches, heard, is_refused=is_refused)
        finally:
            talking.cancel()
            with suppress(asyncio.CancelledError, OSError, HTTPunkError):
                await talking
        if is_left:
            await call.reset()
            await speaker.reset()
            pen.take_another()
        else:
            await speaker.close()
        stage.count(f"session {speaker.version}")


async def _hear(
    call: Incoming, ledger: Ledger, batches: list[list[str]], heard: int, *, is_refused: bool
) -> None:
    """Take so many acks at most, else all and the end."""
    promises = [ledger.offer(bodies) for bodies in batches]
    reached, acks, ended = 0, 0, 0
    async with aclosing(frames_of(call)) as frames:
        async for found in frames:
            if found.flag & TERMINAL:
                ended = found.status
                continue
            start, end = found.ack.start.seq_num, found.ack.end.seq_num
            assert start >= reached
            assert not ended
            reached = end
            ledger.acked(promises[acks], start, end)
            acks += 1
            if acks > heard:
                return
    assert (acks, ended) == (len(batches), 412 if is_refused else 0)


async def _talk(
    call: Incoming, batches: list[list[str]], rng: random.Random, *, is_refused: bool
) -> None:
    inputs = [frame(message(bodies)) for bodies in batches]
    if is_refused:
        inputs.append(frame(message(["never.0.x"], match_seq_num=2**40)))
        inputs.append(frame(message(["never.1.x"])))
    is_slow = rng.random() < 0.1
    while inputs:
        count = rng.randrange(1, 20)
        said, inputs = b"".join(inputs[:count]), inputs[count:]
        cut = rng.randrange(len(said) + 1)
        for part in (said[:cut], said[cut:]):
            if part:
                await call.send(part)
        if is_slow:
            await CLOCK.sleep(rng.random() / 20)
    await call.end()


async def frames_of(call: Incoming) -> AsyncGenerator[Frame, None]:
    """The frames of an answer."""
    buffer = b""
    async for part in call.parts():
        buffer += part
        while len(buffer) >= 4 and len(buffer) >= 3 + int.from_bytes(buffer[:3], "big"):
            end = 3 + int.from_bytes(buffer[:3], "big")
            found, buffer = Frame(buffer[3], buffer[4:end]), buffer[end:]
            yield found
    assert not buffer


async def follower(stage: Stage, name: str) -> None:
    """Follows streams by events or frames: at full speed, slowly, or not listening at all."""
    rng = stage.rng(name)
    while not stage.is_over:
        ledger = rng.choice(stage.ledgers)
        is_events, is_deaf = rng.random() < 0.5, rng.random() < 0.2
        query = rng.choice(("seq_num=0", "tail_offset=0", "tail_offset=5&clamp=true"))
        kind = EVENTS if is_events else SESSION
        asked = Ask("GET", f"{ledger.path}?{query}", (*ledger.fields, kind))
        speaker = Http1(stage.port, rcvbuf=4096) if is_deaf else stage.speaker(rng)
        call = await speaker.open(asked)
        assert call.status == 200
        if is_deaf:
            await CLOCK.sleep(2 * rng.random())
        else:
            batches = events_of(call) if is_events else batches_of(call)
            await _follow(batches, 3 * rng.random(), 0.1 if rng.random() < 0.2 else 0.0)
        await call.reset()
        await speaker.reset()
        stage.count(f"followed {speaker.version}")


async def companion(stage: Stage, name: str) -> None:
    """Has a follower that it does not listen to on the connection of its calls."""
    rng = stage.rng(name)
    pen = Pen(name, rng)
    while not stage.is_over:
        speaker, ledger = Http2(stage.port), rng.choice(stage.ledgers)
        kind = rng.choice((EVENTS, SESSION))
        call = await speaker.open(Ask("GET", f"{ledger.path}?seq_num=0", (*ledger.fields, kind)))
        for _ in range(rng.randrange(1, 40)):
            if not stage.is_over:
                await _append_and_read(stage, rng.choice(stage.ledgers), speaker, rng, pen)
        batches = events_of(call) if kind is EVENTS else batches_of(call)
        await _follow(batches, 0.3, 0.0)
        await call.reset()
        await speaker.close()
        stage.count("accompanied")


async def _follow(
    batches: AsyncIterator[list[Found]], within_secs: float, pause_secs: float
) -> None:
    expected: int | None = None
    with suppress(TimeoutError):
        async with asyncio.timeout(within_secs):
            async for found in batches:
                for record in found:
                    assert expected is None or record.seq_num == expected, "a gap"
                    expected = record.seq_num + 1
                if pause_secs:
                    await CLOCK.sleep(pause_secs)
            raise AssertionError("the server has ended a session")


async def batches_of(call: Incoming) -> AsyncIterator[list[Found]]:
    """The records of each frame."""
    async for found in frames_of(call):
        yield of_batch(ReadBatch.FromString(found.content))


async def events_of(call: Incoming) -> AsyncIterator[list[Found]]:
    """The records of each event."""
    buffer = b""
    async for part in call.parts():
        *events, buffer = (buffer + part).split(b"\n\n")
        for event in events:
            if event.startswith(b"event: batch\n"):
                yield of_json(json.loads(event.partition(b"\ndata: ")[2]))
            else:
                assert event.startswith(b"event: ping\n"), event


Actor = Callable[[Stage, str], Awaitable[None]]
