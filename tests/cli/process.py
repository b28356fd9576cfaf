"""The command as people run it: a process of its own, with an environment that says nothing."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

SECS_MAX = 60
POLL_SECS = 0.05
BOURN = (sys.executable, "-m", "bourn.cli.main")
READY = re.compile(r"bourn is ready on (https?://(\S+):([0-9]+)), data in (\S+)")


def environment_names() -> list[str]:
    """What of this environment would tell a command something."""
    return [name for name in os.environ if name.startswith(("BOURN_", "S2_", "AWS_"))]


def environment(variables: Mapping[str, str] | None = None) -> dict[str, str]:
    silent = environment_names()
    kept = {name: value for name, value in os.environ.items() if name not in silent}
    return kept | dict(variables or {})


class Ended(NamedTuple):
    code: int
    out: bytes
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.decode().splitlines()


def bourn(
    *words: str,
    cwd: Path | None = None,
    stdin: bytes = b"",
    variables: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command to its end."""
    ended = subprocess.run(
        [*BOURN, *words],
        input=stdin,
        capture_output=True,
        cwd=cwd,
        env=environment(variables),
        timeout=SECS_MAX,
        check=False,
    )
    return Ended(ended.returncode, ended.stdout, ended.stderr.decode())


class Serving:
    """A server that runs until the block ends; `port` 0 takes any free one."""

    def __init__(
        self,
        *flags: str,
        cwd: Path | None = None,
        port: int | None = 0,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        chosen = [] if port is None else ["--port", str(port)]
        # A pipe that nobody reads would fill up.
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by `_end`
        self.child = subprocess.Popen(
            [*BOURN, "serve", *chosen, *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd=cwd,
            env=environment(variables),
            text=True,
        )
        self.printed: list[str] = []
        self.url = ""
        self.host = ""
        self.port = 0
        self.bucket = ""

    def until_ready(self) -> Self:
        assert self.child.stdout is not None
        for line in self.child.stdout:
            self.printed.append(line.rstrip("\n"))
            found = READY.fullmatch(self.printed[-1])
            if found is not None:
                self.url, self.host, self.bucket = found[1], found[2], found[4]
                self.port = int(found[3])
                return self
        raise AssertionError(f"ended before it was ready: {self.errors()}")

    def errors(self) -> str:
        # Not through the file's own position, which the child writes at.
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), size, 0).decode()

    def until_said(self, text: str) -> None:
        """Wait for something on standard error."""
        while text not in self.errors():
            with suppress(subprocess.TimeoutExpired):
                code = self.child.wait(POLL_SECS)
                raise AssertionError(f"ended with {code} before it said so: {self.errors()}")

    def send(self, number: signal.Signals) -> None:
        self.child.send_signal(number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.child.poll() is None:
            self.child.send_signal(number)
        return self.child.wait(SECS_MAX)

    def __enter__(self) -> Self:
        try:
            return self.until_ready()
        except BaseException:
            self._end()
            raise

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait(SECS_MAX)
        if self.child.stdout is not None:
            self.child.stdout.close()
        self._errors.close()
