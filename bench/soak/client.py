"""A process of clients that is asked for its window now and then, and told how fast to go."""

import asyncio
import gc
import multiprocessing
import resource
import time
from array import array
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Final

import numpy as np
import uvloop

from bench.engine.case import rss_mb

JOIN_SECS_MAX: Final = 20.0
ANSWER_SECS_MAX: Final = 60.0
ERRORS_SHOWN: Final = 5


class Window:
    """What clients saw since they were last asked."""

    def __init__(self) -> None:
        self.waits: dict[str, array[float]] = {}
        self.counts: dict[str, int] = {}
        self.errors: list[str] = []
        self.errors_count = 0
        self._began = time.perf_counter()
        self._cpu = time.process_time()

    def wait(self, name: str) -> "array[float]":
        """Where waits of that kind go, in seconds."""
        return self.waits.setdefault(name, array("d"))

    def count(self, name: str, more: int) -> None:
        """Count things of that kind."""
        self.counts[name] = self.counts.get(name, 0) + more

    def failed(self, why: str) -> None:
        """Note what went wrong; a few of them, the rest is counted."""
        self.errors_count += 1
        if len(self.errors) < ERRORS_SHOWN:
            self.errors.append(why[:300])

    def take(self) -> dict[str, Any]:
        """Figures of the window; a new one begins."""
        now, cpu = time.perf_counter(), time.process_time()
        took = now - self._began
        figures: dict[str, Any] = {
            "seconds": took,
            "cpus": (cpu - self._cpu) / took,
            "rss_mb": rss_mb(),
            "errors": self.errors_count,
            "first_errors": self.errors[:],
        }
        for name, waits in self.waits.items():
            figures[f"{name}_per_s"] = len(waits) / took
            if waits:
                p50, p99 = np.percentile(np.frombuffer(waits), (50, 99))
                figures[f"{name}_p50_ms"], figures[f"{name}_p99_ms"] = p50 * 1e3, p99 * 1e3
            self.waits[name][:] = array("d")
        for name, count in self.counts.items():
            figures[f"{name}_per_s"] = count / took
            self.counts[name] = 0
        self.errors.clear()
        self.errors_count = 0
        self._began, self._cpu = now, cpu
        return figures


Work = Callable[[int, Window], Any]  # a coroutine function that gives what takes orders


class Client:
    """A process of clients, seen from outside."""

    def __init__(self, work: Work, port: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(work, port, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._answer()  # all are connected

    def tell(self, order: str, **arguments: Any) -> dict[str, Any]:
        """Give an order; what comes back is the window that ends with it."""
        self._pipe.send((order, arguments))
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if not self._pipe.poll(ANSWER_SECS_MAX):
            raise RuntimeError("a process of clients does not answer")
        found: dict[str, Any] = self._pipe.recv()
        return found

    def close(self) -> None:
        """End it."""
        self._pipe.close()
        self._process.join(JOIN_SECS_MAX)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def _run(work: Work, port: int, pipe: Connection) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(_serve(work, port, pipe))


async def _serve(work: Work, port: int, pipe: Connection) -> None:
    """Answer every order with the window before it, until the pipe ends."""
    window = Window()
    clients = await work(port, window)
    gc.freeze()
    pipe.send({})
    loop = asyncio.get_running_loop()
    ended = loop.create_future()

    def ordered() -> None:
        try:
            order, arguments = pipe.recv()
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            ended.set_result(None)
            return
        found = window.take()
        if order != "sample":
            getattr(clients, order)(**arguments)
        pipe.send(found)

    loop.add_reader(pipe.fileno(), ordered)
    await ended
    clients.close()
