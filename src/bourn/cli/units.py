"""Durations and sizes as people write them.

    duration   parts of a whole number and a unit, added up: 20ms, 90s, 7days, 1h 30m
    units      ns us ms s m h d w M y, and their longer names; M is a month of 30.44 days,
               y a year of 365.25
    size       a whole number of bytes, or one with a unit: 1048576, 128MiB, 1.5 GB
    units      B, kB MB GB TB by the thousand, KiB MiB GiB TiB by 1024

Every function raises ValueError with what to write instead.
"""

import re
from decimal import Decimal
from typing import Final

from bourn.limits import U64_MAX

_NS_PER_MS: Final = 1_000_000
_NS_PER_SECOND: Final = 1_000_000_000
_DAY_SECS: Final = 86_400

_NS: Final = {
    name: ns
    for names, ns in (
        ("ns nsec nanos", 1),
        ("us usec micros", 1000),
        ("ms msec millis", _NS_PER_MS),
        ("s sec secs second seconds", _NS_PER_SECOND),
        ("m min mins minute minutes", 60 * _NS_PER_SECOND),
        ("h hr hrs hour hours", 3600 * _NS_PER_SECOND),
        ("d day days", _DAY_SECS * _NS_PER_SECOND),
        ("w wk wks week weeks", 7 * _DAY_SECS * _NS_PER_SECOND),
        ("M month months", 2_630_016 * _NS_PER_SECOND),
        ("y yr yrs year years", 31_557_600 * _NS_PER_SECOND),
    )
    for name in names.split()
}
_SHORT: Final = ((_DAY_SECS, "d"), (3600, "h"), (60, "m"), (1, "s"))
_PART: Final = re.compile(r"([0-9]+)\s*([A-Za-z]+)\s*", re.ASCII)
_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", re.ASCII)
_BYTES: Final = {
    "": 1,
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": 1024,
    "mib": 1024**2,
    "gib": 1024**3,
    "tib": 1024**4,
}
_DIGITS_MAX: Final = 24  # beyond every bound there is


def parse_duration_ns(text: str) -> int:
    """Return the nanoseconds that a duration says."""
    total, at = 0, 0
    stripped = text.strip()
    while at < len(stripped) or not stripped:
        found = _PART.match(stripped, at)
        if found is None or len(found[1]) > _DIGITS_MAX or found[2] not in _NS:
            raise ValueError(f"{text!r} is no duration: write one such as 20ms, 90s or 7days")
        total += int(found[1]) * _NS[found[2]]
        at = found.end()
    return total


def parse_duration_secs(text: str) -> int:
    """Return the seconds that a duration says; it must be whole ones."""
    seconds, rest = divmod(parse_duration_ns(text), _NS_PER_SECOND)
    if rest or seconds > U64_MAX:
        raise ValueError(f"{text!r} must be whole seconds: write one such as 90s or 7days")
    return seconds


def parse_interval_ms(text: str) -> int:
    """Return the milliseconds that a duration, or a bare number of them, says."""
    if text.strip().isdecimal() and len(text) <= _DIGITS_MAX:
        return int(text)
    milliseconds, rest = divmod(parse_duration_ns(text), _NS_PER_MS)
    if rest:
        raise ValueError(f"{text!r} must be whole milliseconds: write one such as 20ms")
    return milliseconds


def parse_size(text: str) -> int:
    """Return the bytes that a size says."""
    found = _SIZE.fullmatch(text.strip())
    unit = None if found is None else _BYTES.get(found[2].lower())
    if found is None or unit is None or len(found[1]) > _DIGITS_MAX:
        raise ValueError(f"{text!r} is no size: write one such as 64MiB or 1048576")
    size = Decimal(found[1]) * unit
    if size != int(size):
        raise ValueError(f"{text!r} is no whole number of bytes: write one such as 64MiB")
    return int(size)


def show_duration(seconds: int) -> str:
    """Return a short text of a duration, which reads back as the same."""
    for unit, name in _SHORT:
        if seconds % unit == 0 and seconds:
            return f"{seconds // unit}{name}"
    return f"{seconds}s"


def show_size(size: int) -> str:
    """Return a size in the largest unit that divides it, which reads back as the same."""
    for name in ("TiB", "GiB", "MiB", "KiB"):
        unit = _BYTES[name.lower()]
        if size and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
