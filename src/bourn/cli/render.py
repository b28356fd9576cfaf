"""What a person sees: lines, tables, configs; with --json, one JSON object a line instead.

Results go to standard output, everything about them to standard error.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from bourn.cli.units import show_duration


def line(text: str) -> None:
    """Write a line of the result, at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a line about what is going on."""
    sys.stderr.write(" ".join(text.split("\n")) + "\n")
    sys.stderr.flush()


def progress(text: str) -> None:
    """Rewrite the line at the bottom of a terminal; nothing where nobody looks at one."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()


def octets(data: bytes) -> None:
    """Write bytes of the result as they are, at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def json_line(value: object) -> None:
    """Write an object of the result."""
    octets(orjson.dumps(value) + b"\n")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write rows below their names, aligned; nothing at all where there are none."""
    cells = [list(map(printable, row)) for row in rows]
    if not cells:
        return
    cells.insert(0, [column.upper() for column in columns])
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        line("  ".join(padded).rstrip())


def printable(text: str) -> str:
    """Return a name as a terminal may show it: whatever could steer it is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def config(shape: Mapping[str, Any]) -> None:
    """Write a basin's or a stream's config as names and values."""
    rows = [(name, printable(value)) for name, value in _flat(shape)]
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        line(f"{name.ljust(width)}  {value}")


def _flat(shape: Mapping[str, Any], above: str = "") -> Iterable[tuple[str, str]]:
    for name, value in shape.items():
        place = f"{above}{name}"
        match value:
            case None:
                yield place, "default"
            case {"infinite": _}:
                yield place, "infinite"
            case {"age": int(seconds)}:
                yield place, show_duration(seconds)
            case {"min_age_secs": int(seconds)}:
                yield place, show_duration(seconds) if seconds else "off"
            case dict():
                yield from _flat(value, f"{place}.")
            case bool():
                yield place, "true" if value else "false"
            case _:
                yield place, str(value)
