"""The grammar of every name that a client may give, and of what it may ask of a list.

    basin name        8 to 48 of a-z 0-9 -, a letter or digit at both ends
    basin prefix      0 to 48 of the same, a letter or digit first
    stream name       1 to 512 bytes of UTF-8 without NUL, not `.` or `..`
    stream prefix     0 to 512 bytes of UTF-8 without NUL
    access token id   1 to 96 bytes of UTF-8 without NUL, not `.` or `..`
    token id prefix   0 to 96 bytes of UTF-8 without NUL
    location name     1 to 64 of A-Z a-z 0-9 : - .
    request token     0 to 36 of printable ASCII
    storage class     1 to 64 bytes of UTF-8

A prefix rule also holds for `start_after`. Lengths are bytes of UTF-8, and so is the order. Each
function returns its argument or raises BadName; the caller knows where the name stood and which
error that place has.
"""

import re
from typing import Final

from bourn.errors import BadName
from bourn.limits import (
    ACCESS_TOKEN_ID_BYTES_MAX,
    BASIN_NAME_BYTES_MAX,
    BASIN_NAME_BYTES_MIN,
    LIST_LIMIT_MAX,
    LOCATION_NAME_BYTES_MAX,
    REQUEST_TOKEN_BYTES_MAX,
    STORAGE_CLASS_BYTES_MAX,
    STREAM_NAME_BYTES_MAX,
)

_BASIN: Final = re.compile(r"[a-z0-9-]*")
_LOCATION: Final = re.compile(r"[A-Za-z0-9:.-]*")
_HEADER_TEXT: Final = re.compile(r"[\t\x20-\x7e]*")
_RELATIVE: Final = frozenset({".", ".."})  # a path segment of these would be resolved away


def basin_name(value: str) -> str:
    """Return a valid basin name."""
    _check_length("basin name", value, BASIN_NAME_BYTES_MIN, BASIN_NAME_BYTES_MAX)
    _check_basin_characters("basin name", value)
    if value.endswith("-"):
        raise BadName("basin name must end with a lowercase letter or a digit")
    return value


def basin_prefix(value: str) -> str:
    """Return a valid `prefix` or `start_after` of a list of basins."""
    _check_length("basin prefix", value, 0, BASIN_NAME_BYTES_MAX)
    _check_basin_characters("basin prefix", value)
    return value


def stream_name(value: str) -> str:
    """Return a valid stream name."""
    return _text_name("stream name", value, STREAM_NAME_BYTES_MAX)


def stream_prefix(value: str) -> str:
    """Return a valid `prefix` or `start_after` of a list of streams."""
    return _text_prefix("stream prefix", value, STREAM_NAME_BYTES_MAX)


def access_token_id(value: str) -> str:
    """Return a valid access token id."""
    return _text_name("access token id", value, ACCESS_TOKEN_ID_BYTES_MAX)


def access_token_prefix(value: str) -> str:
    """Return a valid `prefix` or `start_after` of a list of access tokens."""
    return _text_prefix("access token id prefix", value, ACCESS_TOKEN_ID_BYTES_MAX)


def location_name(value: str) -> str:
    """Return a valid location name; whether it exists is another question."""
    _check_length("location name", value, 1, LOCATION_NAME_BYTES_MAX)
    if not _LOCATION.fullmatch(value):
        raise BadName("location name must hold only ASCII letters, digits, `:`, `-` and `.`")
    return value


def request_token(value: str) -> str:
    """Return a valid request token; the empty one is a token too."""
    _check_length("request token", value, 0, REQUEST_TOKEN_BYTES_MAX)
    if not _HEADER_TEXT.fullmatch(value):
        raise BadName("request token must hold only printable ASCII characters")
    return value


def storage_class(value: str) -> str:
    """Return a valid storage class: any label."""
    _check_length("storage class", value, 1, STORAGE_CLASS_BYTES_MAX)
    return value


def list_limit(limit: int | None) -> int:
    """Return the page size that a list's `limit` asks for: out of range means the largest."""
    return limit if limit is not None and 1 <= limit <= LIST_LIMIT_MAX else LIST_LIMIT_MAX


def _check_basin_characters(what: str, value: str) -> None:
    if not _BASIN.fullmatch(value):
        raise BadName(f"{what} must hold only lowercase letters, digits and hyphens")
    if value.startswith("-"):
        raise BadName(f"{what} must begin with a lowercase letter or a digit")


def _text_name(what: str, value: str, bytes_max: int) -> str:
    _check_length(what, value, 1, bytes_max)
    if value in _RELATIVE:
        raise BadName(f"{what} must not be `.` or `..`")
    return _without_nul(what, value)


def _text_prefix(what: str, value: str, bytes_max: int) -> str:
    _check_length(what, value, 0, bytes_max)
    return _without_nul(what, value)


def _without_nul(what: str, value: str) -> str:
    if "\0" in value:
        raise BadName(f"{what} must not contain NUL")
    return value


def _check_length(what: str, value: str, bytes_min: int, bytes_max: int) -> None:
    try:
        length = len(value.encode())
    except UnicodeEncodeError:
        raise BadName(f"{what} must be valid UTF-8") from None
    if length < bytes_min:
        raise BadName(
            f"{what} must not be empty"
            if bytes_min == 1
            else f"{what} must be at least {bytes_min} bytes long"
        )
    if length > bytes_max:
        raise BadName(f"{what} must not exceed {bytes_max} bytes in length")
