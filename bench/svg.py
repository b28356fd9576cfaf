"""Small charts as SVG: panels of lines, and bars around one. Readable on light and on dark."""

import math
from collections.abc import Sequence
from html import escape
from typing import Final, NamedTuple

COLOURS: Final = ("#3b82c4", "#d9822b", "#2f9e62", "#b8578f")
GOOD, FAIR, BAD = "#2f9e62", "#d9a52b", "#cf4f45"
GRID, TEXT = "#8b949e", "#6e7781"
PANEL_WIDTH: Final = 400
PANEL_HEIGHT: Final = 240
BAR_HEIGHT: Final = 18
LABEL_WIDTH: Final = 390
BARS_WIDTH: Final = 330
RATIO_MIN: Final = 0.1  # bars end here, whatever the ratio is
RATIO_MAX: Final = 20.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 58, 24, 30, 52
_STYLE: Final = (
    "text{font:11px system-ui,sans-serif;fill:" + TEXT + "}"
    ".t{font-weight:600;font-size:12px}.e{text-anchor:end}.m{text-anchor:middle}"
    ".g{stroke:" + GRID + ";stroke-opacity:.28}.a{stroke:" + GRID + ";stroke-opacity:.8}"
    "@media(prefers-color-scheme:dark){text{fill:#a5adb7}}"
)


class Series(NamedTuple):
    """A line; places where there is no value are left out."""

    name: str
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """A chart of lines."""

    title: str
    x_title: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


class Bar(NamedTuple):
    """A ratio: above one is good, from the goal on it is very good."""

    label: str
    ratio: float | None
    goal: float = 1.0


class Scale:
    """From values to places on an axis."""

    def __init__(self, values: Sequence[float], start: float, end: float, *, is_log: bool) -> None:
        """An axis that is not logarithmic begins at 0."""
        self.is_log = is_log
        self._start, self._end = start, end
        high = max(values, default=1.0)
        if is_log:
            positive = [value for value in values if value > 0] or [1.0]
            self.low = 10.0 ** math.floor(math.log10(min(positive)))
            self.high = 10.0 ** math.ceil(math.log10(max(positive)))
            if self.high <= self.low:
                self.high = self.low * 10
        else:
            step = step_of(high if high > 0 else 1.0)
            self.low, self.high = 0.0, step * max(1, math.ceil(high / step - 1e-9))

    def at(self, value: float) -> float:
        """Where a value lies; outside of the axis, at its end."""
        value = min(max(value, self.low), self.high)
        if self.is_log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        """Values to write beside the axis."""
        if not self.is_log:
            step = step_of(self.high)
            return [step * number for number in range(round(self.high / step) + 1)]
        first, last = round(math.log10(self.low)), round(math.log10(self.high))
        every = max(1, math.ceil((last - first) / 6))
        return [10.0**power for power in range(first, last + 1, every)]


def step_of(high: float) -> float:
    """1, 2 or 5 times a power of ten, of which some four make `high`."""
    raw = high / 4
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if raw <= power * factor * (1 + 1e-9))


def number_of(value: float) -> str:
    """A number as short as it can be said."""
    for limit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:.3g}{name}"
    return f"{value:.3g}"


def panels(title: str, charts: Sequence[Panel], columns: int = 2) -> str:
    """Charts side by side, in rows."""
    columns = min(columns, max(1, len(charts)))
    rows = -(-len(charts) // columns)
    parts = [
        f'<g transform="translate({at % columns * PANEL_WIDTH},{at // columns * PANEL_HEIGHT})">'
        f"{_panel(chart)}</g>"
        for at, chart in enumerate(charts)
    ]
    return _document(title, columns * PANEL_WIDTH, max(1, rows) * PANEL_HEIGHT, parts)


def _panel(chart: Panel) -> str:
    xs = [x for series in chart.series for x, _ in series.points]
    ys = [y for series in chart.series for _, y in series.points]
    x_scale = Scale(xs, _LEFT, PANEL_WIDTH - _RIGHT, is_log=chart.log_x)
    y_scale = Scale(ys, PANEL_HEIGHT - _BOTTOM, _TOP, is_log=chart.log_y)
    bottom = PANEL_HEIGHT - _BOTTOM
    parts = [_text(_LEFT, 18, chart.title, "t")]
    for tick in y_scale.ticks():
        y = y_scale.at(tick)
        parts.append(_line(_LEFT, y, PANEL_WIDTH - _RIGHT, y, "g"))
        parts.append(_text(_LEFT - 6, y + 4, number_of(tick), "e"))
    for tick in x_scale.ticks():
        x = x_scale.at(tick)
        parts.append(_line(x, bottom, x, bottom + 4, "a"))
        parts.append(_text(x, bottom + 16, number_of(tick), "m"))
    parts.append(_line(_LEFT, bottom, PANEL_WIDTH - _RIGHT, bottom, "a"))
    parts.append(_text(PANEL_WIDTH - _RIGHT, bottom + 31, chart.x_title, "e"))
    at = float(_LEFT)
    for series, colour in zip(chart.series, COLOURS, strict=False):
        points = " ".join(f"{x_scale.at(x):.1f},{y_scale.at(y):.1f}" for x, y in series.points)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.8"/>'
        )
        if len(series.points) <= 12:
            parts += [
                f'<circle cx="{x_scale.at(x):.1f}" cy="{y_scale.at(y):.1f}" r="2.6" '
                f'fill="{colour}"><title>{number_of(x)}: {number_of(y)}</title></circle>'
                for x, y in series.points
            ]
        parts.append(
            f'<rect x="{at:.0f}" y="{bottom + 39}" width="10" height="3" fill="{colour}"/>'
        )
        parts.append(_text(at + 14, bottom + 44, series.name))
        at += 30 + 6.2 * len(series.name)
    return "".join(parts)


def bars(title: str, found: Sequence[Bar]) -> str:
    """Ratios as bars that begin at one, on a logarithmic scale."""
    height = 50 + BAR_HEIGHT * len(found)
    scale = Scale([], LABEL_WIDTH, LABEL_WIDTH + BARS_WIDTH, is_log=True)
    scale.low, scale.high = RATIO_MIN, RATIO_MAX
    bottom = height - 22
    parts = [_text(8, 16, title, "t")]
    for tick in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0):
        x = scale.at(tick)
        parts.append(_line(x, 26, x, bottom, "a" if tick == 1.0 else "g"))
        parts.append(_text(x, bottom + 14, f"{tick:g}", "m"))
    for at, bar in enumerate(found):
        y = 28 + BAR_HEIGHT * at
        parts.append(_text(LABEL_WIDTH - 8, y + 12, bar.label, "e"))
        if bar.ratio is None:
            parts.append(_text(scale.at(1.0) + 5, y + 12, "failed"))
            continue
        ends = sorted((scale.at(1.0), scale.at(bar.ratio)))
        colour = GOOD if bar.ratio >= bar.goal else FAIR if bar.ratio >= 1 else BAD
        parts.append(
            f'<rect x="{ends[0]:.1f}" y="{y + 2}" width="{max(ends[1] - ends[0], 1):.1f}" '
            f'height="{BAR_HEIGHT - 6}" fill="{colour}"/>'
        )
        parts.append(_text(LABEL_WIDTH + BARS_WIDTH + 8, y + 12, f"{bar.ratio:.2f}"))
    return _document(title, LABEL_WIDTH + BARS_WIDTH + 56, height, parts)


def _document(title: str, width: int, height: int, parts: Sequence[str]) -> str:
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{_STYLE}</style>\n{inside}\n</svg>\n"
    )


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    chosen = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{chosen}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'
