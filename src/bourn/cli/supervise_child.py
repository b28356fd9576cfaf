"""The pipeline as a child process: its start, what it tells, its end.

It leads a process group of its own, so that a key on the server's terminal does not reach it, and
it holds the other end of a pipe: when the server has gone, however it went, the pipe ends, and the
child ends itself with all that it has started. What it writes to standard output are reports, a
line each; what comes on standard error is passed on.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import cast

from bourn.limits import PIPELINE_LINE_BYTES_MAX

Hear = Callable[[bytes], None]


class Lines:
    """Cuts bytes into lines, and passes them on; of one that is too long, the beginning."""

    def __init__(self, hear: Hear, bytes_max: int = PIPELINE_LINE_BYTES_MAX) -> None:
        self._hear = hear
        self._bytes_max = bytes_max
        self._line = bytearray()

    def feed(self, data: bytes) -> None:
        """Take more of it."""
        *ended, rest = data.split(b"\n")
        for part in ended:
            self._add(part)
            self._end()
        self._add(rest)

    def close(self) -> None:
        """Pass on a last line that has no end."""
        if self._line:
            self._end()

    def _add(self, part: bytes) -> None:
        self._line += part[: self._bytes_max - len(self._line)]

    def _end(self) -> None:
        line = bytes(self._line)
        self._line.clear()
        self._hear(line)


class Child(asyncio.SubprocessProtocol):
    """A process that runs. `ended` returns its code; `stop` ends it."""

    def __init__(self, out: Hear, err: Hear) -> None:
        """Made by `start`."""
        self._lines = {1: Lines(out), 2: Lines(err)}
        self._transport: asyncio.SubprocessTransport | None = None
        self._exited = asyncio.Event()
        self._released = asyncio.Event()  # and nobody holds its pipes any more
        self.pid = 0  # the process, and the group that it leads

    @classmethod
    async def start(
        cls, command: Sequence[str], environ: Mapping[str, str], *, out: Hear, err: Hear
    ) -> "Child":
        """Start a command; `out` and `err` get its lines. OSError where that cannot be done."""
        _, child = await asyncio.get_running_loop().subprocess_exec(
            lambda: cls(out, err),
            *command,
            env=dict(environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return child

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The process runs."""
        self._transport = cast("asyncio.SubprocessTransport", transport)  # uvloop's is none by type
        self.pid = self._transport.get_pid()

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """It says something."""
        self._lines[fd].feed(data)

    def process_exited(self) -> None:
        """It has ended; whatever it had started and left behind belongs to its group."""
        self._exited.set()
        self._kill_group()

    def connection_lost(self, exc: Exception | None) -> None:
        """All that it had to say was heard."""
        del exc
        for lines in self._lines.values():
            lines.close()
        self._released.set()

    async def ended(self) -> int:
        """Return its exit code, or the negative number of the signal, once it has ended."""
        await self._released.wait()
        assert self._transport is not None
        self._transport.close()
        code = self._transport.get_returncode()
        assert code is not None
        return code

    async def stop(self, secs: float) -> None:
        """Ask it to end, and end it with its group when it does not in time."""
        assert self._transport is not None
        try:
            with suppress(ProcessLookupError):
                self._transport.send_signal(signal.SIGTERM)
            async with asyncio.timeout(secs):
                await self._exited.wait()
        except TimeoutError:
            pass  # it did not listen, and loses nothing by what comes now
        finally:
            self._kill_group()
        await self._exited.wait()
        self._transport.close()

    def _kill_group(self) -> None:
        assert self.pid > 1  # 0 would be our own group
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
