"""`bourn metrics …`: what the account, a basin or a stream has used."""

import argparse
import math
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, urlencode

from bourn.cli import render
from bourn.cli.address import parse_basin, parse_stream
from bourn.cli.client import account_client
from bourn.cli.failures import DONE, Misused
from bourn.cli.units import parse_duration_secs
from bourn.clock import SystemClock
from bourn.model.usage import ACCOUNT_SETS, BASIN_SETS, STREAM_SETS, Interval, UsageSet

INTERVALS: Final = tuple(interval.value for interval in Interval)
BAR_CHARS: Final = 20
_SINCE: Final = {Interval.MINUTE: 3600, Interval.HOUR: 86_400, Interval.DAY: 30 * 86_400}
_LABELS_SINCE: Final = 86_400
_UNIX: Final = re.compile(r"[0-9]{1,10}")

Sets = dict[UsageSet, tuple[Interval, ...]]


def add_commands(group: Any, add: Callable[..., argparse.ArgumentParser]) -> None:
    """Add the commands to a parser, in the way in which it adds commands."""
    what = "show what {} has used"
    of_account = add(group, "account", account, what.format("the whole account"))
    of_basin = add(group, "basin", basin, what.format("a basin"))
    of_basin.add_argument("basin", metavar="BASIN", help="the basin")
    of_stream = add(group, "stream", stream, what.format("a stream"))
    of_stream.add_argument("stream", metavar="s2://BASIN/STREAM", help="the stream")
    for parser, sets in (
        (of_account, ACCOUNT_SETS),
        (of_basin, BASIN_SETS),
        (of_stream, STREAM_SETS),
    ):
        names = [found.value for found in sets]
        parser.add_argument(
            "--set", choices=names, default=names[0], help=f"what to show [{names[0]}]"
        )
        when = "90m before the end, 2030-01-31T12:00Z, or Unix seconds"
        parser.add_argument("--start", metavar="TIME", help=f"from when on: {when}")
        parser.add_argument("--end", metavar="TIME", help="until when: 90m ago, or a time [now]")
        parser.add_argument(
            "--interval", choices=INTERVALS, help="how long the period of a point is"
        )


def account(arguments: argparse.Namespace) -> int:
    """`bourn metrics account`."""
    return _show("/metrics", ACCOUNT_SETS, arguments)


def basin(arguments: argparse.Namespace) -> int:
    """`bourn metrics basin`."""
    return _show(f"/metrics/{parse_basin(arguments.basin)}", BASIN_SETS, arguments)


def stream(arguments: argparse.Namespace) -> int:
    """`bourn metrics stream`."""
    address = parse_stream(arguments.stream)
    path = f"/metrics/{address.basin}/{quote(address.stream, safe='')}"
    return _show(path, STREAM_SETS, arguments)


def _show(path: str, sets: Sets, arguments: argparse.Namespace) -> int:
    wanted = UsageSet(arguments.set)
    query = {"set": wanted.value} | _window(sets[wanted], arguments)
    with account_client(arguments.endpoint) as client:
        metrics = client.call("GET", f"{path}?{urlencode(query)}").body["values"]
    if arguments.json:
        for metric in metrics:
            render.json_line(metric)
    else:
        _show_metrics(metrics)
    return DONE


def _window(intervals: tuple[Interval, ...], arguments: argparse.Namespace) -> dict[str, str]:
    """Return start, end and interval; without options, up to now from a round moment."""
    now_s = SystemClock().now_ms() // 1000
    interval = None
    since_secs = _LABELS_SINCE
    if intervals:
        interval = intervals[0] if arguments.interval is None else Interval(arguments.interval)
        since_secs = _SINCE[interval]
    end_s = now_s + 1 if arguments.end is None else _instant(arguments.end, now_s, "--end")
    if arguments.start is not None:
        start_s = _instant(arguments.start, end_s, "--start")
    else:
        round_secs = 1 if interval is None else interval.secs
        start_s = max(end_s - since_secs, 0) // round_secs * round_secs
        start_s += round_secs if end_s - start_s > _SINCE[Interval.DAY] else 0
    query = {"start": str(start_s), "end": str(end_s)}
    if arguments.interval is not None:
        query["interval"] = arguments.interval
    return query


def _instant(text: str, from_s: int, flag: str) -> int:
    """Read an instant: Unix seconds, a date and time, or so long before another instant."""
    if _UNIX.fullmatch(text):
        return int(text)
    try:
        return max(from_s - parse_duration_secs(text.removesuffix("ago").strip()), 0)
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise Misused(
            f"{flag}: {text!r} is no time: write 90m for so long ago, 2030-01-31T12:00Z, "
            "or Unix seconds"
        ) from None
    return max(int((found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()), 0)


def _show_metrics(metrics: Iterable[dict[str, Any]]) -> None:
    is_first = True
    for metric in metrics:
        ((kind, inner),) = metric.items()
        if kind == "label":
            for name in inner["values"]:
                render.line(render.printable(name))
            continue
        if not is_first:
            render.line("")
        is_first = False
        _show_series(inner)


def _show_series(inner: dict[str, Any]) -> None:
    """Write a series as rows, each with a bar that is as long as its value is large."""
    show = _SHOWN.get(inner["unit"], str)
    points = [(instant, value, show(value)) for instant, value in inner["values"]]
    whole = f", total {show(sum(value for _, value, _ in points))}" if "interval" in inner else ""
    render.line(f"{render.printable(inner['name'])}: {inner['unit']}{whole}")
    largest = max((value for _, value, _ in points), default=0)
    width = max((len(text) for _, _, text in points), default=0)
    for instant, value, text in points:
        at = datetime.fromtimestamp(instant, UTC).strftime("%Y-%m-%d %H:%M")
        bar = "\u2588" * math.ceil(BAR_CHARS * value / largest) if largest else ""
        render.line(f"  {at}  {text.rjust(width)}  {bar}".rstrip())


def _count(value: float) -> str:
    return str(int(value))


def _usd(value: float) -> str:
    return f"{value:.6f}".rstrip("0").rstrip(".") or "0"


_SHOWN: Final[dict[str, Callable[[float], str]]] = {
    "bytes": _count,
    "operations": _count,
    "usd": _usd,
}
