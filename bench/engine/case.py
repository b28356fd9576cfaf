"""What is measured once: a case; how it is run: alone in a child; what comes out: a row."""

import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

Figures = dict[str, float | str]

CHILD_SECS_MAX: Final = 600


class Budget(msgspec.Struct, frozen=True):
    """A bound on one figure: at least, or below."""

    figure: str
    bound: float
    unit: str = ""
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether a measured value is within the budget."""
        return value >= self.bound if self.at_least else value < self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<"
        return f"{self.figure} {sign} {self.bound:,g}{self.unit and ' ' + self.unit}"


class Case(msgspec.Struct, frozen=True):
    """One thing to measure: a function of a module, its arguments, and what is asked of it."""

    group: str
    name: str
    work: Callable[..., Figures]
    arguments: dict[str, Any] = {}
    budgets: tuple[Budget, ...] = ()
    repeats: int | None = None  # None: as often as the run says


class Row(msgspec.Struct):
    """A case and all its repeats."""

    group: str
    name: str
    budgets: tuple[Budget, ...] = ()
    repeats: list[Figures] = []
    failure: str = ""

    @property
    def medians(self) -> Figures:
        """The median of every figure; of texts, the last."""
        if not self.repeats:
            return {}
        return {
            figure: last if isinstance(last, str) else statistics.median(self._values(figure))
            for figure, last in self.repeats[-1].items()
        }

    def verdicts(self) -> list[tuple[Budget, bool]]:
        """Each budget, and whether the medians keep it."""
        medians = self.medians
        return [
            (budget, isinstance(value := medians.get(budget.figure), float) and budget.holds(value))
            for budget in self.budgets
        ]

    def _values(self, figure: str) -> list[float]:
        values = [figures.get(figure) for figures in self.repeats]
        return [value for value in values if isinstance(value, float | int)]


class ChildFailed(Exception):
    """A case raised, or its process ended without a word."""


def in_child(work: Callable[..., Figures], **arguments: Any) -> Figures:
    """Run `work` in a fresh process, so that no case inherits another's memory.

    It gets `spawned_at`, the moment before its process was made, on the clock of `perf_counter`,
    which all processes of a machine share.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_run, args=(sender, work, {**arguments, "spawned_at": time.perf_counter()})
    )
    process.start()
    sender.close()
    try:
        if not receiver.poll(CHILD_SECS_MAX):
            process.kill()
            raise ChildFailed(f"no answer within {CHILD_SECS_MAX} s")
        figures, failure = receiver.recv()
    except EOFError:
        process.join()
        raise ChildFailed(f"the process ended with code {process.exitcode}") from None
    finally:
        receiver.close()
        process.join()
    if failure:
        raise ChildFailed(failure)
    return dict(figures)


def _run(sender: Connection, work: Callable[..., Figures], arguments: dict[str, Any]) -> None:
    try:
        sender.send((work(**arguments), ""))
    except BaseException:  # noqa: BLE001  whatever it was, the parent tells
        sender.send(({}, traceback.format_exc()))
    sender.close()


def latency_figures(seconds: Iterable[float], prefix: str = "") -> Figures:
    """Median and 99th percentile in milliseconds."""
    p50, p99 = np.percentile(np.fromiter(seconds, np.float64), (50, 99))
    return {f"{prefix}p50_ms": float(p50) * 1e3, f"{prefix}p99_ms": float(p99) * 1e3}


def rss_mb() -> float:
    """What this process has resident now."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 1e6


def peak_rss_mb() -> float:
    """The most that this process has had resident; unlike getrusage, without its parent's."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    return 0.0
