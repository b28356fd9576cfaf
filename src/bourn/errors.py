"""Every error, grouped by what the caller must do; `http/problems.py` alone turns them into HTTP.

`code` is S2's code for the error. Some do not carry one on the wire (the two append conditions,
an unwritten read, the two of content coding); theirs is empty. Errors of storage name the object
they are about.
"""

from typing import ClassVar


class BournError(Exception):
    """The root of everything that Bourn raises on purpose."""

    code: ClassVar[str] = "other"

    @property
    def message(self) -> str:
        """The text for a person."""
        return str(self.args[0]) if self.args else self.code


# Mend the request: nothing happened.


class RequestError(BournError):
    """The request cannot succeed as it is."""


class BadJson(RequestError):
    """The body is not the JSON that the call takes."""

    code = "bad_json"


class BadProto(RequestError):
    """The body is not the protobuf message that the call takes."""

    code = "bad_proto"


class BadFrame(RequestError):
    """A session frame is malformed."""

    code = "bad_frame"


class BadCompression(RequestError):
    """Compressed bytes are corrupt, truncated or too large; whoever holds them names the format."""


class UnsupportedEncoding(RequestError):
    """The body's content coding is none of ours: 415, without a body."""

    code = ""


class NotAcceptable(RequestError):
    """The client accepts no coding that we could answer in: 406, without a body."""

    code = ""


class BadPath(RequestError):
    """A path segment fails its grammar."""

    code = "bad_path"


class BadQuery(RequestError):
    """A query parameter cannot be understood."""

    code = "bad_query"


class BadHeader(RequestError):
    """A request header is missing or cannot be understood."""

    code = "bad_header"


class DecryptionFailed(RequestError):
    """The key does not open a record."""

    code = "decryption_failed"

    def __init__(self) -> None:
        super().__init__("record decryption failed")


class Invalid(RequestError):
    """Well formed, but against a rule or a limit."""

    code = "invalid"


class BadName(RequestError):
    """A name fails its grammar; whoever knows where it stood raises that place's error of it."""

    code = "invalid"


class BadAddress(RequestError, ValueError):
    """A URL is no endpoint; nothing was asked for."""

    code = "invalid"


class Unauthenticated(RequestError):
    """No token, or none that is known and in force."""

    code = "authn"


class PermissionDenied(RequestError):
    """The token is in force, but not for this."""

    code = "permission_denied"


class QuotaExhausted(RequestError):
    """There are as many of these as there may be."""

    code = "quota_exhausted"


class SeqNumMismatch(RequestError):
    """`match_seq_num` was not the next sequence number."""

    code = ""

    def __init__(self, next_seq_num: int) -> None:
        super().__init__(f"the next sequence number is {next_seq_num}")
        self.next_seq_num = next_seq_num


class FencingTokenMismatch(RequestError):
    """`fencing_token` was not the stream's."""

    code = ""

    def __init__(self, fencing_token: str) -> None:
        super().__init__("the stream has another fencing token")
        self.fencing_token = fencing_token


class Unwritten(RequestError):
    """The read starts where nothing is written yet and may not wait."""

    code = ""

    def __init__(self, tail_seq_num: int, tail_timestamp: int) -> None:
        super().__init__(f"nothing is written at or after sequence number {tail_seq_num}")
        self.tail_seq_num = tail_seq_num
        self.tail_timestamp = tail_timestamp


# The resource is not in the state that the call needs: nothing happened.


class ResourceError(BournError):
    """A basin or stream is missing, present, or going away."""


class BasinNotFound(ResourceError):
    """No such basin."""

    code = "basin_not_found"

    def __init__(self, basin: str) -> None:
        super().__init__(f"basin `{basin}` not found")


class StreamNotFound(ResourceError):
    """No such stream."""

    code = "stream_not_found"

    def __init__(self, basin: str, stream: str) -> None:
        super().__init__(f"stream `{stream}` in basin `{basin}` not found")


class AccessTokenNotFound(ResourceError):
    """No such access token, or none in force."""

    code = "access_token_not_found"

    def __init__(self, token_id: str) -> None:
        super().__init__(f"access token `{token_id}` not found")


class ResourceAlreadyExists(ResourceError):
    """A create met a resource of that name."""

    code = "resource_already_exists"


class BasinDeletionPending(ResourceError):
    """The basin is being deleted."""

    code = "basin_deletion_pending"

    def __init__(self, basin: str) -> None:
        super().__init__(f"basin `{basin}` is being deleted")


class StreamDeletionPending(ResourceError):
    """The stream is being deleted."""

    code = "stream_deletion_pending"

    def __init__(self) -> None:
        super().__init__("stream deletion pending")


# Try again, perhaps elsewhere.


class StreamReplaced(BournError):
    """The stream was deleted and made anew while an append to it waited; nothing happened."""

    code = "transaction_conflict"

    def __init__(self) -> None:
        super().__init__("the stream has been replaced by another one of its name")


class RateLimited(BournError):
    """More than the basin or the token may do at a time; nothing happened."""

    code = "rate_limited"

    def __init__(self, message: str, retry_after_ms: int) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class Unavailable(BournError):
    """Not now: the node is starting, rebuilding, fenced or stopped. No promise about the append."""

    code = "unavailable"


class ServerDraining(BournError):
    """The node is about to stop; nothing happened; connect again."""

    code = "server_draining"


class RequestTimeout(BournError):
    """The request did not arrive in time; nothing happened."""

    code = "request_timeout"


class StorageFailed(BournError):
    """The bucket failed; whether the append took effect is not known."""

    code = "storage"


class OutcomeUnknown(BournError):
    """The append was accepted and then its outcome became unknown."""

    code = "other"


# The bucket, as its adapters report it.


class BucketError(BournError):
    """An object could not be read or written."""

    code = "storage"

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key}: {message}")
        self.key = key


class ObjectMissing(BucketError):
    """No object of that key."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "no such object")


class ObjectExists(BucketError):
    """A create-only put met an object of that key: somebody's, or our own of a lost reply."""

    def __init__(self, key: str) -> None:
        super().__init__(key, "the object exists already")


class BucketUnavailable(BucketError):
    """The request failed in a way that may pass; a put may or may not have taken effect."""


class BucketRefused(BucketError):
    """The request will fail again the same way (credentials, permission, no such bucket)."""


class BucketMisuse(BucketError, ValueError):
    """The call breaks the port's rules (a key outside the grammar): a bug; nothing happened."""


# Give up: an operator must look.


class Damaged(BournError):
    """A stored object does not hold what was written to it; the message names the object."""

    code = "storage"

    def __init__(self, key: str, message: str) -> None:
        super().__init__(f"{key} is damaged: {message}")
        self.key = key


class OutOfSequence(BournError):
    """A stored batch does not follow the stream's state; the caller knows which object holds it."""

    code = "storage"


class Undecodable(BournError):
    """Stored bytes hold no value of their format; the caller knows which object holds them."""

    code = "storage"


class NewerFormat(BournError):
    """A newer Bourn wrote the object: whole, but not for this one, which must not go on without."""

    code = "storage"

    def __init__(self, key: str, version: int, readable: int) -> None:
        super().__init__(
            f"{key} has version {version}, so a newer Bourn wrote it; "
            f"this one reads up to version {readable}"
        )
        self.key = key


class Fenced(Unavailable):
    """A newer writer has taken over the bucket; this node must not ack or serve any more."""
