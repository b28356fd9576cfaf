"""A forked node process and its pipe.

The forking process has loaded everything and runs no loop and no thread of its own, so that a node
stands within milliseconds, and SIGKILL hits the node itself.
"""

import fcntl
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn

from bourn.bucket import kernel
from bourn.clock import SystemClock
from bourn.layout import codec
from tests.crash.events import AnyEvent, Reporter, Trouble, decode_event

LIFE_SECS_MAX: Final = 120  # a child that outlives its parent ends by itself
_PIPE_BYTES: Final = 1 << 20
_READ_BYTES: Final = 1 << 20

clock: Final = SystemClock()


def warm() -> None:
    """Load what every node needs, once, before the first fork."""
    kernel.load()
    codec.warm(print)


class Process:
    """A child, from the parent's side."""

    def __init__(self, number: int, pid: int, descriptor: int) -> None:
        self.number = number
        self.pid = pid
        self.descriptor = descriptor
        self.at_end = False
        self.status: int | None = None  # once it was waited for
        self._bytes = bytearray()
        self._decoded = 0

    @classmethod
    def fork(cls, number: int, main: Callable[[Reporter], None]) -> "Process":
        """Run `main` in a child of its own."""
        reading, writing = os.pipe()
        if hasattr(fcntl, "F_SETPIPE_SZ"):  # Linux: a child seldom waits for its parent to read
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        pid = os.fork()
        if not pid:
            os.close(reading)
            _run_child(Reporter(writing), main)
        os.close(writing)
        os.set_blocking(reading, False)
        return cls(number, pid, reading)

    def read(self) -> None:
        """Take everything that is in the pipe now."""
        while not self.at_end:
            try:
                data = os.read(self.descriptor, _READ_BYTES)
            except BlockingIOError:
                return
            self._bytes += data
            if not data:
                self.at_end = True
                os.close(self.descriptor)

    def find(self, text: bytes, start: int = 0) -> int:
        """Tell where in everything read so far a text stands, or -1."""
        return self._bytes.find(text, start)

    def events(self) -> Iterator[AnyEvent]:
        """Yield the events that were read and not yet yielded; a line cut short is none."""
        while (end := self._bytes.find(b"\n", self._decoded)) >= 0:
            line = bytes(self._bytes[self._decoded : end])
            self._decoded = end + 1
            yield decode_event(line)

    def told(self) -> bytes:
        """Everything read so far, as it came."""
        return bytes(self._bytes)

    def kill(self) -> None:
        """SIGKILL, and read what it had still told."""
        self.signal(signal.SIGKILL)
        self.wait_end()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process was waited for already."""
        if self.status is None:
            os.kill(self.pid, number)

    def stop(self) -> None:
        """SIGSTOP, and return once it stands still."""
        self.signal(signal.SIGSTOP)
        if self.status is None:
            _, status = os.waitpid(self.pid, os.WUNTRACED)
            self.status = None if os.WIFSTOPPED(status) else status
        self.read()

    def wait_end(self) -> None:
        """Read to the end of the pipe and wait for the process."""
        while not self.at_end:
            wait_for([self], 1.0)
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)


def wait_for(processes: Sequence[Process], seconds: float) -> None:
    """Sleep until one of the pipes has something, or for `seconds`; then read them all."""
    live = [process for process in processes if not process.at_end]
    select.select([process.descriptor for process in live], [], [], max(seconds, 0))
    for process in live:
        process.read()


def _run_child(reporter: Reporter, main: Callable[[Reporter], None]) -> NoReturn:
    """Never returns: a child must not run on in its parent's code."""
    status = 1
    try:
        signal.alarm(LIFE_SECS_MAX)
        main(reporter)
        status = 0
    except BrokenPipeError:
        pass  # the parent has gone
    except BaseException:  # noqa: BLE001  whatever it is, the parent must hear of it
        reporter.tell(Trouble(traceback.format_exc()))
    finally:
        os._exit(status)
