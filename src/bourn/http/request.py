"""What handlers ask of a request, each check in its place of the validation order."""

from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Final, NoReturn

from bourn.errors import (
    BadCompression,
    BadHeader,
    BadJson,
    BadName,
    BadPath,
    BadProto,
    BournError,
    PermissionDenied,
)
from bourn.http.audit import CONTROL, Audit
from bourn.http.auth import Guard, Principal
from bourn.http.exchange import BodyTooLarge, Exchange, read_body
from bourn.http.media import Media, media_of
from bourn.http.problems import problem_of
from bourn.http.routing import decode_segment
from bourn.http.throttle import Pace, Throttle
from bourn.limits import ENCRYPTION_KEY_CHARS_MAX, UNARY_BODY_BYTES_MAX
from bourn.model import names
from bourn.model.access import Op
from bourn.model.config import StreamConfig
from bourn.model.keys import NO_KEY, CustomerKey
from bourn.model.record import Command, Fence
from bourn.model.resource import STREAM_CONFIG_HEADER, decode_stream_config_header
from bourn.wire.compression import (
    Compression,
    choose_response_encoding,
    compress,
    decompress,
    parse_content_encoding,
)

RESPONSE_COMPRESSION_THRESHOLD_BYTES: Final = 1024
# What does not compress grows a little by the attempt, in either coding by less than this.
COMPRESSED_BODY_BYTES_MAX: Final = UNARY_BODY_BYTES_MAX + UNARY_BODY_BYTES_MAX // 128 + 1024
ENCODING_NAMES: Final = {Compression.ZSTD: "zstd", Compression.GZIP: "gzip"}


class Request:
    """One request with its answer still to come: who sends it, and which operations it is."""

    def __init__(
        self,
        exchange: Exchange,
        basin_suffixes: tuple[str, ...],
        principal: Principal,
        ops: tuple[Op, ...],
        audit: Audit,
        throttle: Throttle | None = None,
    ) -> None:
        self.exchange = exchange
        self._basin_suffixes = basin_suffixes
        self.principal = principal
        self.ops = ops
        self._audit = audit
        self._throttle = throttle  # None where there are no limits
        self.pace: Pace | None = None  # of an append session
        self._subject: dict[str, str] = {}  # what it is about, for the audit log
        self._is_noted = False  # in the audit log

    # Permission

    def permit(
        self, basin: str = "", stream: str = "", token_id: str = "", *, is_session: bool = False
    ) -> None:
        """Go on only if the token may do this to the resource, whether that exists or not.

        The request counts from here on; a session counts later, by `as_session`.
        """
        if self.ops[0] in CONTROL:
            self._subject = {"basin": basin, "stream": stream, "token": token_id}
        for op in self.ops:
            if not self.principal.allows(op, basin, stream, token_id):
                self._refuse(op, basin, stream, token_id)
        if self._throttle is not None and not is_session:
            self._throttle.admit_request(basin, self.principal.id)

    def permit_commands(
        self, commands: tuple[tuple[int, Command], ...], basin: str, stream: str
    ) -> None:
        """Go on only if the token may append these command records."""
        for _, command in commands:
            op = Op.FENCE if isinstance(command, Fence) else Op.TRIM
            if not self.principal.allows(op, basin, stream):
                self._refuse(op, basin, stream)

    def _refuse(self, op: Op, basin: str, stream: str, token_id: str = "") -> NoReturn:
        self._is_noted = True
        error = PermissionDenied(f"the access token does not permit `{op.value}` here")
        self._audit.refused(
            op,
            403,
            error.code,
            principal=self.principal.id,
            basin=basin,
            stream=stream,
            token=token_id,
            client=client_of(self.exchange),
        )
        raise error

    def _note_done(self, status: int) -> None:
        """Have the audit log know of a change before the client does."""
        if self.ops and self.ops[0] in CONTROL:
            self._is_noted = True
            self._audit.done(self.ops[0], status, **self._about())

    def note_failure(self, error: Exception) -> None:
        """Have the audit log know of a change that did not come about, if it does not yet."""
        if not self._is_noted and self.ops[0] in CONTROL:
            status = problem_of(error).status
            code = error.code if isinstance(error, BournError) else "other"
            self._audit.failed(self.ops[0], status, code, **self._about())

    def _about(self) -> dict[str, str]:
        about = {"principal": self.principal.id, "client": client_of(self.exchange)}
        return self._subject | about

    # Limits

    def admit_append(self, basin: str, metered_bytes: int) -> None:
        """Go on only if so much may be appended now."""
        if self._throttle is not None:
            self._throttle.admit_append(basin, self.principal.id, metered_bytes)

    @asynccontextmanager
    async def as_session(self, basin: str) -> AsyncIterator[None]:
        """Go on only if one more session may be open, and count this one."""
        if self._throttle is None:
            yield
            return
        async with self._throttle.session(basin, self.principal.id) as self.pace:
            yield

    # The end of the token

    @cached_property
    def guard(self) -> Guard:
        """What ends this request if its token ends before it does."""
        return Guard(self.principal)

    async def guarded(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that may outlive the token, in a task of its own."""
        if self.principal.is_open:
            await work
        else:
            with self.guard.entered():
                await work

    # Names

    def request_token(self) -> str | None:
        """The idempotency token of a create."""
        value = self.exchange.header("s2-request-token")
        if value is None:
            return None
        try:
            return names.request_token(value)
        except BadName as error:
            raise BadHeader(f"Invalid header `s2-request-token`: {error.message}") from None

    def basin(self) -> str:
        """The basin of a `/streams…` request: by header, else by host."""
        value = self.exchange.header("s2-basin")
        if value is None:
            value = self._basin_of_host()
        if value is None:
            raise BadHeader("Missing header `s2-basin`")
        try:
            return names.basin_name(value)
        except BadName as error:
            raise BadHeader(f"Invalid header `s2-basin`: {error.message}") from None

    def _basin_of_host(self) -> str | None:
        if not self._basin_suffixes:
            return None
        host = (self.exchange.header("host") or "").rsplit(":", 1)[0].lower()
        for suffix in self._basin_suffixes:
            label, dot, rest = host.partition(".")
            if dot and rest == suffix:
                return label
        return None

    def basin_segment(self, segment: str) -> str:
        """A basin's name in the path."""
        try:
            return names.basin_name(decode_segment(segment))
        except BadName as error:
            raise BadPath(f"Invalid URL: {error.message}") from None

    def stream_segment(self, segment: str) -> str:
        """A stream's name in the path, made whole by the token's own prefix."""
        try:
            return self.whole_name(names.stream_name(decode_segment(segment)))
        except BadName as error:
            raise BadPath(f"Invalid URL: {error.message}") from None

    def whole_name(self, name: str) -> str:
        """The name of a stream as the store has it; BadName where it is too long with its prefix.

        What the token prefixes by itself, it is never shown: see `own_name`.
        """
        prefix = self.principal.stream_prefix
        return names.stream_name(prefix + name) if prefix else name

    def own_name(self, name: str) -> str:
        """The name of a stream as whoever asks knows it."""
        return name.removeprefix(self.principal.stream_prefix)

    # Headers

    def encryption_key(self) -> CustomerKey:
        """The customer's key; its shape is checked even where no cipher asks for it."""
        value = self.exchange.header("s2-encryption-key")
        value = None if value is None else value.strip(" \t")
        if value is not None and not 1 <= len(value) <= ENCRYPTION_KEY_CHARS_MAX:
            raise BadHeader(
                "Invalid header `s2-encryption-key`: "
                f"expected 1 to {ENCRYPTION_KEY_CHARS_MAX} characters"
            )
        return NO_KEY if value is None else CustomerKey(value)

    def stream_config(self) -> StreamConfig | None:
        """The config for a stream that this request may create."""
        value = self.exchange.header(STREAM_CONFIG_HEADER)
        return None if value is None else decode_stream_config_header(value)

    def content_type(self) -> Media:
        """What the body is."""
        return media_of(self.exchange.header_values("content-type"))

    def accept(self) -> Media:
        """What the client wants back."""
        return media_of(self.exchange.header_values("accept"))

    # Bodies

    def check_codings(self) -> None:
        """Refuse content codings that we do not have, before anything else is looked at."""
        self.content_coding()
        accepted = self.exchange.header_values("accept-encoding")
        if any(";" in value for value in accepted):  # only a weight can rule out the plain text
            choose_response_encoding(accepted)

    def content_coding(self) -> Compression:
        """How the body is compressed."""
        values = self.exchange.header_values("content-encoding")
        return parse_content_encoding(values) if values else Compression.NONE

    async def body(self, refusal: type[BadJson | BadProto]) -> bytes:
        """Read and decompress the body; `refusal` is what a bad or too large one raises."""
        coding = self.content_coding()
        try:
            if coding is Compression.NONE:
                return await read_body(self.exchange, UNARY_BODY_BYTES_MAX)
            data = await read_body(self.exchange, COMPRESSED_BODY_BYTES_MAX)
            return decompress(data, coding, UNARY_BODY_BYTES_MAX)
        except BodyTooLarge as error:
            raise refusal(error.message) from None
        except BadCompression as error:
            raise refusal(f"cannot decompress the body: {error.message}") from None

    async def json_body(self) -> bytes:
        """The JSON body that the call requires."""
        if self.content_type() is not Media.JSON:
            raise BadJson("Expected request with `Content-Type: application/json`")
        return await self.body(BadJson)

    async def optional_json_body(self) -> bytes | None:
        """The JSON body of a call that can do without."""
        kind = self.content_type()
        if kind is Media.ABSENT:
            return None
        if kind is not Media.JSON:
            raise BadJson("Expected request with `Content-Type: application/json`")
        return await self.body(BadJson) or None

    # Answers

    async def answer(
        self, status: int, body: bytes, media: Media = Media.JSON, **headers: str
    ) -> None:
        """Send a whole answer, compressed as the client likes where that pays."""
        found = [("content-type", media.value)]
        found += [(name.replace("_", "-"), value) for name, value in headers.items()]
        if len(body) >= RESPONSE_COMPRESSION_THRESHOLD_BYTES:
            coding = choose_response_encoding(self.exchange.header_values("accept-encoding"))
            if coding is not Compression.NONE:
                body = compress(body, coding)
                found.append(("content-encoding", ENCODING_NAMES[coding]))
            found.append(("vary", "accept-encoding"))
        self._note_done(status)
        await self.exchange.respond(status, found, body)

    async def answer_empty(self, status: int, *headers: tuple[str, str]) -> None:
        """Send an answer without a body."""
        self._note_done(status)
        await self.exchange.respond(status, list(headers), b"")


def client_of(exchange: Exchange) -> str:
    """The address that a request came from, where the adapter knows it."""
    return str(getattr(exchange, "client", ""))


class NotImplementedHere(BournError):
    """A part of the API that this server does not have."""

    code = "not_implemented"

    def __init__(self) -> None:
        super().__init__("Not implemented")
