r"""A client program, driven line by line: the same for every language.

    harness to client                         client to harness
    {"run": NAME, "compression": NAME}   ->
                                         <-   {"ask": "kill" | "stop"}     any number of times
    {"done": true}                       ->                                 the server runs again
                                         <-   {"error": null | TEXT}
    {"used": true}                       ->
                                         <-   {"used": [NAME, ...]}         with tracing on

A program finds the server by the variables of the SDKs, is told by its last argument whether to
trace, and ends with its input.
"""

import json
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Self

from tests.cli.process import environment
from tests.compat.install import ROOT
from tests.compat.server import Place

SCENARIO_SECS_MAX = 60.0
SAID_MAX = 4000


class Driver:
    """A client program, started when it is needed and again when it has died."""

    def __init__(self, command: Sequence[str | Path], place: Place, *, trace: bool = False) -> None:
        self._place = place
        self._command = [*command, "trace" if trace else "plain"]
        self._child: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _start(self) -> subprocess.Popen[str]:
        if self._child is None:
            here = self._place.url
            self._lines: Queue[str] = Queue()
            self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `_end`
            self._child = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                cwd=ROOT,
                env=environment({"S2_ACCOUNT_ENDPOINT": here, "S2_BASIN_ENDPOINT": here}),
                text=True,
            )
            self._reader = threading.Thread(target=self._read, args=(self._child,), daemon=True)
            self._reader.start()
        return self._child

    def _end(self) -> str:
        """End the program; returns the end of what it said."""
        child, self._child = self._child, None
        if child is None:
            return ""
        child.kill()
        child.wait()
        self._reader.join()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace")[-SAID_MAX:]
        self._errors.close()
        return said

    def run(self, scenario: str, compression: str = "none") -> str | None:
        """Run a scenario; returns what went wrong."""
        self._send({"run": scenario, "compression": compression})
        while True:
            said = self._receive()
            if "ask" not in said:
                error: str | None = said["error"]
                return error
            self._place.restart(said["ask"])
            self._send({"done": True})

    def used(self) -> set[str]:
        """Which of the SDK's functions have been called."""
        self._send({"used": True})
        return set(self._receive()["used"])

    def _read(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _send(self, message: dict[str, Any]) -> None:
        stdin = self._start().stdin
        assert stdin is not None
        with suppress(BrokenPipeError):  # what it said before it ended is told by `_receive`
            stdin.write(json.dumps(message) + "\n")
            stdin.flush()

    def _receive(self) -> dict[str, Any]:
        try:
            line = self._lines.get(timeout=SCENARIO_SECS_MAX)
        except Empty:
            raise AssertionError(
                f"the client hangs; it said: {self._end()}\nthe server: {self._place.state()}"
            ) from None
        if not line:
            raise AssertionError(f"the client ended; it said: {self._end()}")
        found: dict[str, Any] = json.loads(line)
        return found
