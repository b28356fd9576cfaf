"""What can go wrong between a client and an S2 endpoint, by what the caller must do.

    Unreachable            no connection: nothing was asked for; try again, or start a server
    ConnectionLost         it broke in between: whether a request took effect is not known
    Refused                the server said no, with a status and S2's code
      Unwritten            416: the read starts behind the tail, or at it and may not wait
      SeqNumMismatch       412: another sequence number is the next
      FencingTokenMismatch 412: the stream has another token

`is_retryable` tells what may work another time, and `has_no_effect` that nothing was done, so that
even an append may be repeated: both by S2's table of codes, or by the status of a code that is not
in it. Errors can be pickled; none of them holds a token or a key.
"""

from typing import Final

import orjson

# S2's codes that may work another time, and whether nothing was done
_RETRYABLE_CODES: Final = {
    "request_timeout": False,
    "transaction_conflict": True,
    "rate_limited": True,
    "other": False,
    "storage": False,
    "hot_server": True,
    "unavailable": False,
    "server_draining": True,
    "upstream_timeout": False,
}
_RETRYABLE_STATUSES: Final = frozenset({408, 429, 500, 502, 503, 504})
# Later codes may mean anything: what is below 500 was refused before anything happened.
_SERVER_FAULT: Final = 500
_TIMEOUT: Final = 408
_SHOWN_BYTES_MAX: Final = 200
DRAINING: Final = "server_draining"


class ClientError(Exception):
    """The root of everything that a client raises on purpose; its text is for people."""

    is_retryable = False
    has_no_effect = True

    @property
    def message(self) -> str:
        """The text."""
        return str(self.args[0]) if self.args else type(self).__name__


class NotS2(ClientError):
    """What answers is no S2 endpoint, or sends what it must not."""

    has_no_effect = False


class Unreachable(ClientError):
    """There was no connection at all, so nothing was asked for."""

    is_retryable = True


class Untrusted(ClientError):
    """The connection could not be encrypted, or not with one who is trusted."""


class ConnectionLost(ClientError):
    """The connection broke, or fell silent, before the answer was whole."""

    is_retryable = True
    has_no_effect = False


class Refused(ClientError):
    """An answer that is an error: the HTTP status, S2's code, and what the server says."""

    def __init__(self, status: int, code: str, text: str, retry_after_ms: int = 0) -> None:
        super().__init__(status, code, text, retry_after_ms)
        self.status = status
        self.code = code
        self.text = text
        self.retry_after_ms = retry_after_ms

    def __str__(self) -> str:
        return f"{self.text} ({self.code or 'status'} {self.status})".replace("(status ", "(")

    @property
    def message(self) -> str:
        """What the server says."""
        return self.text

    @property
    def is_retryable(self) -> bool:  # type: ignore[override]  # here it depends
        """Whether it may work another time."""
        return self.code in _RETRYABLE_CODES or self.status in _RETRYABLE_STATUSES

    @property
    def has_no_effect(self) -> bool:  # type: ignore[override]  # here it depends
        """Whether nothing was done."""
        found = _RETRYABLE_CODES.get(self.code)
        if found is None:
            return self.status < _SERVER_FAULT and self.status != _TIMEOUT
        return found


class Unwritten(Refused):
    """The read starts where nothing is written yet."""

    def __init__(self, tail_seq_num: int, tail_timestamp: int) -> None:
        super().__init__(416, "", f"the stream ends before sequence number {tail_seq_num}")
        self.args = (tail_seq_num, tail_timestamp)
        self.tail_seq_num = tail_seq_num
        self.tail_timestamp = tail_timestamp


class SeqNumMismatch(Refused):
    """`match_seq_num` was not the next sequence number."""

    def __init__(self, next_seq_num: int) -> None:
        super().__init__(412, "", f"the next sequence number is {next_seq_num}")
        self.args = (next_seq_num,)
        self.next_seq_num = next_seq_num


class FencingTokenMismatch(Refused):
    """`fencing_token` was not the stream's."""

    def __init__(self, fencing_token: str) -> None:
        super().__init__(412, "", f"the stream's fencing token is {fencing_token!r}")
        self.args = (fencing_token,)
        self.fencing_token = fencing_token


def refusal(status: int, data: bytes, retry_after: str = "") -> ClientError:
    """Return the error of an answer: status, body, and its header `retry-after-ms`."""
    try:
        body = orjson.loads(data)
    except ValueError:
        body = None
    retry_after_ms = int(retry_after) if retry_after.isascii() and retry_after.isdigit() else 0
    match status, body:
        case 416, {"tail": {"seq_num": int(seq_num), "timestamp": int(timestamp)}}:
            return Unwritten(seq_num, timestamp)
        case 412, {"fencing_token_mismatch": str(token)}:
            return FencingTokenMismatch(token)
        case 412, {"seq_num_mismatch": int(expected)}:
            return SeqNumMismatch(expected)
        case _, {"code": str(code), "message": str(message)}:
            return Refused(status, code, message, retry_after_ms)
    said = data[:_SHOWN_BYTES_MAX].decode(errors="replace").strip()
    return Refused(status, "", said or f"the server answers {status}", retry_after_ms)
