"""Every error as HTTP: the one place where codes meet statuses."""

from typing import Final, NamedTuple

from bourn.errors import (
    BadCompression,
    BournError,
    FencingTokenMismatch,
    NotAcceptable,
    RateLimited,
    SeqNumMismatch,
    UnsupportedEncoding,
    Unwritten,
)
from bourn.model.record import StreamPosition
from bourn.wire.json import (
    encode_error,
    encode_fencing_token_mismatch,
    encode_seq_num_mismatch,
    encode_tail,
)

STATUS: Final = {
    "bad_json": 400,
    "bad_path": 400,
    "bad_query": 400,
    "bad_header": 400,
    "bad_proto": 400,
    "bad_frame": 400,
    "decryption_failed": 400,
    "authn": 401,
    "permission_denied": 403,
    "quota_exhausted": 403,
    "basin_not_found": 404,
    "stream_not_found": 404,
    "access_token_not_found": 404,
    "request_timeout": 408,
    "resource_already_exists": 409,
    "basin_deletion_pending": 409,
    "stream_deletion_pending": 409,
    "transaction_conflict": 409,
    "invalid": 422,
    "rate_limited": 429,
    "client_hangup": 499,
    "other": 500,
    "storage": 500,
    "not_implemented": 501,
    "hot_server": 502,
    "unavailable": 503,
    "server_draining": 503,
    "upstream_timeout": 504,
}
JSON: Final = "application/json"
UNAUTHENTICATED: Final = STATUS["authn"]


class Problem(NamedTuple):
    """An error as a response: a unary one, or the inside of a terminal frame or SSE error."""

    status: int
    body: bytes  # empty where the compression layer answers
    retry_after_ms: int | None = None  # no sooner

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of the unary response."""
        headers = [("content-type", JSON)] if self.body else []
        if self.status == UNAUTHENTICATED:
            headers.append(("www-authenticate", "Bearer"))
        if self.retry_after_ms is not None:
            headers.append(("retry-after-ms", str(self.retry_after_ms)))
        return headers


def problem_of(error: BaseException) -> Problem:  # noqa: PLR0911  one case an error
    """Translate an error; what we did not foresee is a 500 that says nothing of the inside."""
    match error:
        case SeqNumMismatch():
            return Problem(412, encode_seq_num_mismatch(error.next_seq_num))
        case FencingTokenMismatch():
            return Problem(412, encode_fencing_token_mismatch(error.fencing_token))
        case Unwritten():
            tail = StreamPosition(error.tail_seq_num, error.tail_timestamp)
            return Problem(416, encode_tail(tail))
        case UnsupportedEncoding():
            return Problem(415, b"")
        case NotAcceptable():
            return Problem(406, b"")
        case BadCompression():
            return Problem(400, encode_error("bad_json", error.message))
        case RateLimited():
            body = encode_error(error.code, error.message)
            return Problem(STATUS[error.code], body, error.retry_after_ms)
        case BournError():
            return Problem(STATUS[error.code], encode_error(error.code, error.message))
        case _:
            return Problem(500, encode_error("other", "internal error"))
