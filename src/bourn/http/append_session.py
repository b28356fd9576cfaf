"""An S2S append session: frames in, acks out, both at once.

It decodes and submits as fast as room allows, while its acks go out in order, all that are ready
in one write. The first failure ends it: acks of what came before, one terminal frame, the end.

Both ways are plain calls as long as nothing has to be waited for: what the connection receives is
taken as it comes, and acks are pushed when their commit is durable. Then no task is woken for a
batch. What has to wait (for room, for a limit, for a client that does not read) is left to a task,
and nothing overtakes it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from bourn.clock import Clock
from bourn.engine.appender import Appender
from bourn.errors import BadFrame, BadProto, BournError
from bourn.http.auth import Principal, token_ended
from bourn.http.draining import Draining
from bourn.http.exchange import ClientGone, Exchange
from bourn.http.problems import problem_of
from bourn.http.pushing import Http2Pusher
from bourn.http.telemetry import Telemetry
from bourn.http.throttle import Pace
from bourn.layout.codec import AppendInput, decode_append_input
from bourn.limits import BACKLOG_PIECE_BYTES_MIN
from bourn.model.record import AppendAck, Command
from bourn.wire.frames import Frame, FrameParser, encode_terminal, frame_head
from bourn.wire.protobuf import APPEND_ACK_BYTES_MAX, encode_append_ack

log = logging.getLogger(__name__)

Commands = tuple[tuple[int, Command], ...]

UNACKED_INPUTS_MAX: Final = 4096  # beside the byte budget: what is tiny is bounded too
_HEADS: Final = tuple(frame_head(size) for size in range(APPEND_ACK_BYTES_MAX + 1))
_ADVISING_HEADS: Final = tuple(
    frame_head(size, reconnect=True) for size in range(APPEND_ACK_BYTES_MAX + 1)
)


class Outbox:
    """Sessions that have acks to send: all that one commit has acked are served in one go."""

    def __init__(self) -> None:
        self._sessions: list[AppendSession] = []

    def add(self, session: "AppendSession") -> None:
        """Have a session send its acks, a moment from now."""
        if not self._sessions:
            asyncio.get_running_loop().call_soon(self._send)
        self._sessions.append(session)

    def _send(self) -> None:
        sessions, self._sessions = self._sessions, []
        now = sessions[0].clock.monotonic()
        lines: dict[int, Http2Pusher] = {}
        for session in sessions:
            if session.shared is not None:
                session.push(now)
                lines[session.shared.line] = session.shared
        for pusher in lines.values():
            try:
                pusher.flush()  # one write for many; one for each would keep the others waiting
            except Exception:  # which is this connection's, and must not reach the next session
                log.exception("acks could not be sent at once")
        for session in sessions:
            if session.shared is None:
                session.push(now)


class AppendSession:
    """One append session: the intake of its request's body, and the waiter for its acks."""

    def __init__(
        self,
        exchange: Exchange,
        appender: Appender,
        telemetry: Telemetry,
        draining: Draining,
        clock: Clock,
        principal: Principal,
        permit: Callable[[Commands], None],
        pace: Pace | None = None,
        outbox: Outbox | None = None,
    ) -> None:
        self._exchange = exchange
        self._appender = appender
        self._telemetry = telemetry
        self._observe = telemetry.ack.observe
        self._draining = draining
        self.clock = clock
        self._principal = principal
        self._permit = permit  # PermissionDenied for commands that the token may not append
        self._pace = pace  # None where appends have no limit
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser()
        self._frames: deque[Frame] = deque()  # that have come and were not submitted
        self.is_ready = True  # to take more
        self._reader: asyncio.Task[None] | None = None
        self._slow: asyncio.Task[None] | None = None  # submits what has to wait
        self._admitted_at: deque[float] = deque()  # of batches whose acks were not sent
        self._is_refused = False  # a batch; nothing behind it has any effect
        self._outbox = outbox or Outbox()
        self._pusher = pusher = exchange.pusher()
        self.shared = pusher if isinstance(pusher, Http2Pusher) else None
        self._acks: list[AppendAck] = []  # to be sent
        self._failure: BaseException | None = None  # of an append: the end, behind the acks
        self._is_writing = True  # the task; what it has not sent yet, nobody may overtake
        self._changed = asyncio.Event()  # there is something for it to do
        self._taken = asyncio.Event()  # acks were taken to be written
        self._ended: BaseException | None = None  # what ended the input, if not its own end
        self._input_done = False

    async def run(self) -> None:
        """Serve until the client has closed its side and has all acks, or until a failure."""
        reader = self._reader = self._loop.create_task(self._read())
        reader.add_done_callback(self._heard_out)
        try:
            with (
                self._draining.watched(lambda: self._halt(self._draining.refusal())),
                self._principal.watched(lambda: self._halt(token_ended())),
            ):
                await self._write()
        finally:
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    def _halt(self, why: BaseException) -> None:
        """Take nothing more; what was submitted is still acked."""
        if not self._input_done and self._ended is None:
            self._ended = why
            self.is_ready = False
            self._frames.clear()
            if self._reader is not None:
                self._reader.cancel()

    # In

    async def _read(self) -> None:
        self._exchange.feed(self)
        try:
            async for chunk in self._exchange.chunks():
                await self._until_ready()
                self.take(chunk)
            await self._until_ready()
            self._parser.finish()
        except BournError as error:
            self._ended = self._ended or error.with_traceback(None)  # which refers to this
        except Exception as error:
            log.exception("an append session failed")
            self._ended = self._ended or error.with_traceback(None)  # which refers to this

    def _heard_out(self, _: object) -> None:
        """Nothing more is taken; `_read` may have been cancelled before it began."""
        self._exchange.feed(None)
        self.is_ready = False
        self._input_done = True
        if self._slow is not None:
            self._slow.cancel()
        self._wake()

    async def _until_ready(self) -> None:
        if self._slow is not None:
            await asyncio.wait([self._slow])
            self._slow = None

    def take(self, chunk: bytes) -> None:
        """Submit the frames that a part of the body completes, as far as nothing has to wait."""
        if self._ended is not None or self._parser.error is not None:
            return
        try:
            is_free = self.is_ready and not self._frames and not self._is_refused
            if is_free and (message := self._parser.lone(chunk)) is not None:
                self._submit_now(self._wanted(message))
                return
            frames = self._parser.feed(chunk)
            if self._is_refused:
                return
            if not is_free:
                self._frames.extend(frames)
                return
            for at, frame in enumerate(frames):
                if not self._submit_now(self._decoded(frame)):
                    if not self._is_refused:
                        self._frames.extend(frames[at + 1 :])
                    return
            self._parser.check()
        except Exception as error:  # noqa: BLE001  told to the client
            self._fail(error)

    def _submit_now(self, wanted: AppendInput) -> bool:
        """Admit a batch if nothing has to be waited for; else leave it to a task, and say False."""
        if (
            self._pace is not None
            or len(self._admitted_at) >= UNACKED_INPUTS_MAX
            or not self._appender.try_room_for(wanted[0])
        ):
            self.is_ready = False
            self._slow = self._loop.create_task(self._submit_slowly(wanted))
            return False
        return self._submit(wanted, 0.0)

    async def _submit_slowly(self, wanted: AppendInput) -> None:
        """Submit a batch and all that has come behind it, waiting where that is called for."""
        try:
            while True:
                while len(self._admitted_at) >= UNACKED_INPUTS_MAX:
                    self._taken.clear()
                    await self._taken.wait()
                if self._pace is not None:
                    await self._pace.wait_for(wanted.batch.metered_bytes)
                if self._appender.is_ahead:
                    await self._appender.let_catch_up()
                asked = self.clock.monotonic()
                await self._appender.room_for(wanted.batch)
                was_admitted = self._submit(wanted, self.clock.monotonic() - asked)
                if not was_admitted or not self._frames:
                    break
                wanted = self._decoded(self._frames.popleft())
            self._parser.check()
        except Exception as error:  # noqa: BLE001  told to the client
            self._fail(error)
        else:
            self.is_ready = not self._input_done

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, BournError):
            log.error("an append session failed", exc_info=error)
        self._halt(error)

    def _decoded(self, frame: Frame) -> AppendInput:
        """Return what a frame asks for, with the batch as the stream keeps it."""
        if frame.terminal:
            raise BadFrame("a client sends no terminal frame")
        return self._wanted(frame.message())

    def _wanted(self, message: bytes | memoryview) -> AppendInput:
        try:
            wanted = decode_append_input(message)
        except BadProto as error:
            raise BadFrame(error.message) from None
        batch = wanted.batch
        if batch.commands:
            self._permit(batch.commands)
        sealed = self._appender.sealed(batch)
        return wanted if sealed is batch else wanted._replace(batch=sealed)

    def _submit(self, wanted: AppendInput, waited_secs: float) -> bool:
        """Admit a batch that has its room; False where it is refused."""
        batch, match_seq_num, fencing_token = wanted
        self._telemetry.admitted(batch, waited_secs)
        refused = self._appender.submit_for(self, batch, match_seq_num, fencing_token)
        if refused is None:
            self._admitted_at.append(self.clock.monotonic())
            return True
        self._is_refused = True
        self._frames.clear()
        refused.add_done_callback(self._refused)
        return False

    # Out

    def acked(self, ack: AppendAck) -> None:
        """A batch is durable, and all before it are."""
        if not self._acks:
            self._outbox.add(self)
        self._acks.append(ack)

    def failed(self, error: BournError) -> None:
        """Nobody knows what became of a batch."""
        if self._failure is None:
            self._failure = error
            self._wake()

    def _refused(self, refusal: "asyncio.Future[AppendAck]") -> None:
        """The state that a refusal rests on is durable, and with it all batches before."""
        if self._failure is None:
            self._failure = refusal.exception()
            self._wake()

    def _framed(self, acks: list[AppendAck]) -> bytes:
        heads = _ADVISING_HEADS if self._draining.wanted else _HEADS
        if len(acks) == 1:
            message = encode_append_ack(acks[0])
            return heads[len(message)] + message
        messages = [encode_append_ack(ack) for ack in acks]
        return b"".join([heads[len(message)] + message for message in messages])

    def _sent(self, count: int, now: float) -> None:
        """Note how long it took to these acks; more can be admitted."""
        admitted_at = self._admitted_at
        for _ in range(count):
            self._observe(now - admitted_at.popleft())
        if self._slow is not None:
            self._taken.set()

    def push(self, now: float) -> None:
        """Send the acks by a plain call, unless that has to wait."""
        if self._is_writing:
            return  # the task sends them
        acks = self._acks
        data = self._framed(acks)
        pusher = self._pusher
        try:
            is_pushed = (
                pusher is not None
                and len(data) < BACKLOG_PIECE_BYTES_MIN
                and pusher.push(pusher.framed(data))
            )
        except Exception:  # which is this connection's, and must not reach the next session
            log.exception("acks could not be pushed")
            is_pushed = False
        if not is_pushed:
            self._wake()
            return
        self._sent(len(acks), now)
        acks.clear()
        if self._input_done and not self._admitted_at:
            self._wake()

    def _wake(self) -> None:
        self._is_writing = True
        self._changed.set()

    async def _write(self) -> None:
        """Send what could not be pushed, then the end: a clean one, or one terminal frame."""
        while True:
            if self._acks:
                acks, self._acks = self._acks, []
                self._sent(len(acks), self.clock.monotonic())
                await self._exchange.send(self._framed(acks))
            elif self._failure is not None:
                await self._end(self._failure)
                return
            elif self._input_done and not self._admitted_at and not self._is_refused:
                await self._end(self._ended)
                return
            else:
                self._is_writing = False
                self._changed.clear()
                await self._changed.wait()

    async def _end(self, failure: BaseException | None) -> None:
        if isinstance(failure, ClientGone):
            return
        if failure is not None:
            problem = problem_of(failure)
            await self._exchange.send(encode_terminal(problem.status, problem.body))
        await self._exchange.finish()
