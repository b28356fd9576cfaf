"""The server that the clients are let loose on: `bourn serve`, as people run it.

BOURN_TEST_EDGE names the HTTP edge; everything else about the suite is the same on each of them.
"""

import os
import shutil
import signal
from pathlib import Path
from typing import Literal, Self

from tests.cli.process import Serving

EDGE = os.environ.get("BOURN_TEST_EDGE", "native")
EDGES = {"native": (), "asgi": ("--edge", "asgi")}
BUCKETS = ("memory", "disk")
NO_SPARK = ("--pipeline", "off")  # it would take the clients' cores after a minute

Ending = Literal["kill", "stop"]


class Place:
    """A server with a bucket and a port that stay the same when it is started again."""

    def __init__(self, bucket: str, data: Path, *flags: str) -> None:
        self._data = data
        where = ("--memory",) if bucket == "memory" else ("--bucket", str(data), *NO_SPARK)
        self._flags = (*where, *EDGES[EDGE], *flags)
        self.is_durable = bucket == "disk"
        self._serving = Serving(*self._flags)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._serving.port}"

    def restart(self, ending: Ending) -> None:
        """End the process, at once or in good order, and start another in its place."""
        assert self.is_durable, "what is in memory does not outlive its server"
        old = self._serving
        code = old.stop(signal.SIGKILL if ending == "kill" else signal.SIGTERM)
        assert code == (-signal.SIGKILL if ending == "kill" else 0), old.errors()
        old.__exit__()
        self._serving = Serving(*self._flags, port=old.port).__enter__()

    def state(self) -> str:
        """Whether the server runs, and what it said."""
        code = self._serving.child.poll()
        how = "runs" if code is None else f"ended with {code}"
        return f"{how}; it said: {self._serving.errors()}"

    def __enter__(self) -> Self:
        self._serving.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._serving.__exit__()
        shutil.rmtree(self._data, ignore_errors=True)
