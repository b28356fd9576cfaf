"""Times of resources as RFC 3339 text, in UTC, with no more fractional digits than needed.

    2023-11-14T22:13:20Z    2023-11-14T22:13:20.5Z    2023-11-14T22:13:20.123456789Z

Any offset is read, years 0001 to 9999; digits beyond the ninth are cut off. A leap second is
the second after it, as in Unix time.
"""

import datetime as dt
import re
from functools import lru_cache
from typing import Final

from bourn.errors import BadJson
from bourn.limits import INSTANT_MINUTES_KEPT

MS_MAX: Final = 253_402_300_799_999  # 9999-12-31T23:59:59.999Z, the last that can be written

_MS_PER_MINUTE: Final = 60_000
_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_SECONDS_PER_DAY: Final = 86_400
_EPOCH: Final = dt.date(1970, 1, 1).toordinal()
_FIRST_DAY: Final = dt.date.min.toordinal()
_LAST_DAY: Final = dt.date.max.toordinal()
_RFC_3339: Final = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]+))?(?:[Zz]|([+-])([0-9]{2}):([0-9]{2}))"
)


def format_ms(instant_ms: int) -> str:
    """Return the text of a time in milliseconds since the Unix epoch."""
    minute, rest_ms = divmod(instant_ms, _MS_PER_MINUTE)
    second, fraction_ms = divmod(rest_ms, 1000)
    if not fraction_ms:
        return f"{_text_of_minute(minute)}{second:02d}Z"
    fraction = f"{fraction_ms:03d}".rstrip("0")
    return f"{_text_of_minute(minute)}{second:02d}.{fraction}Z"


@lru_cache(INSTANT_MINUTES_KEPT)
def _text_of_minute(minute: int) -> str:
    """The text of its times as far as they share it: lists are full of neighbours."""
    return format_ns(minute * _MS_PER_MINUTE * _NS_PER_MS).removesuffix("00Z")


def format_ns(instant_ns: int) -> str:
    """Return the text of a time in nanoseconds since the Unix epoch."""
    seconds, fraction_ns = divmod(instant_ns, _NS_PER_SECOND)
    days, second_of_day = divmod(seconds, _SECONDS_PER_DAY)
    minute_of_day, second = divmod(second_of_day, 60)
    hour, minute = divmod(minute_of_day, 60)
    date = dt.date.fromordinal(_EPOCH + days).isoformat()
    fraction = f".{fraction_ns:09d}".rstrip("0") if fraction_ns else ""
    return f"{date}T{hour:02d}:{minute:02d}:{second:02d}{fraction}Z"


def parse_ns(text: str) -> int:
    """Return the nanoseconds since the Unix epoch that an RFC 3339 text says."""
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise BadJson("time must be in the form of RFC 3339, such as 2023-11-14T22:13:20Z")
    year, month, day, hour, minute, second = (int(match[i]) for i in range(1, 7))
    offset_hour, offset_minute = int(match[9] or 0), int(match[10] or 0)
    try:
        days = dt.date(year, month, day).toordinal() - _EPOCH
    except ValueError:
        raise BadJson(f"there is no day {text[:10]}") from None
    if hour > 23 or minute > 59 or second > 60 or offset_hour > 23 or offset_minute > 59:  # noqa: PLR2004  a clock's bounds
        raise BadJson("time is out of the bounds of a clock")
    offset = (offset_hour * 60 + offset_minute) * 60 * (-1 if match[8] == "-" else 1)
    seconds = days * _SECONDS_PER_DAY + (hour * 60 + minute) * 60 + second - offset
    if second == 60 and seconds % _SECONDS_PER_DAY:  # noqa: PLR2004  a leap second ends a UTC day
        raise BadJson("a leap second stands only at the end of a UTC day")
    if not _FIRST_DAY <= _EPOCH + seconds // _SECONDS_PER_DAY <= _LAST_DAY:
        raise BadJson("time is out of the years 0001 to 9999")
    return seconds * _NS_PER_SECOND + int((match[7] or "")[:9].ljust(9, "0"))
