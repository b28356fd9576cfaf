"""A start: from the making of the process to a node that serves, with and without compiled kernels.

python -m bench.engine.startup DIRECTORY    serves, says so, and ends with its input
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.engine.case import Budget, Case, ChildFailed, Figures

SERVING: Final = "serving"
BUDGET: Final = Budget("serving_s", 3.0, "s")


def cases() -> list[Case]:
    """Both, on a local disk, empty."""
    return [
        Case(
            "startup", "warm kernel cache", measure, {"target": "local", "cold": False}, (BUDGET,)
        ),
        Case("startup", "cold kernel cache", measure, {"target": "local", "cold": True}, (), 1),
    ]


def measure(target: Any, *, cold: bool, spawned_at: float) -> Figures:
    """Start a server process and wait until it serves; what it said meanwhile is kept."""
    del spawned_at
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory() as cache:
        if cold:
            environment["NUMBA_CACHE_DIR"] = cache
        else:
            _start(target.place + "/warm", environment)  # it may be the first one ever
        return _start(target.place + "/measured", environment)


def _start(place: str, environment: dict[str, str]) -> Figures:
    began = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.engine.startup", place],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    said: list[str] = []
    figures: Figures = {}
    for line in process.stdout:
        after = time.perf_counter() - began
        if line.startswith(SERVING):
            imports_s, open_s, rss = map(float, line.split()[1:])
            figures = {
                "serving_s": after,
                "imports_s": imports_s,
                "open_s": open_s,
                "rss_mb": rss,
            }
            break
        said.append(f"{after:.1f} s: {line.strip()}")
    process.stdin.close()
    if process.wait() or not figures:
        raise ChildFailed(f"the server ended with code {process.returncode}")
    figures["said"] = "; ".join(said)
    return figures


def serve(place: str) -> None:
    """Do what a server does at its start, then wait for the end of the input."""
    began = time.perf_counter()
    import uvloop  # noqa: PLC0415  the imports are part of what is measured

    from bench.engine.case import rss_mb  # noqa: PLC0415
    from bourn.bucket.local import LocalBucket  # noqa: PLC0415
    from bourn.engine.node import Node  # noqa: PLC0415
    from bourn.engine.process import tune_process  # noqa: PLC0415

    logging.basicConfig(stream=sys.stdout, level=logging.INFO, format="%(message)s")
    imports_s = time.perf_counter() - began

    async def work() -> None:
        opened = time.perf_counter()
        bucket = LocalBucket(Path(place))
        node = await Node.open(bucket, say=lambda text: print(text, flush=True))
        tune_process()
        open_s = time.perf_counter() - opened
        print(f"{SERVING} {imports_s:.3f} {open_s:.3f} {rss_mb():.1f}", flush=True)
        sys.stdin.read()
        await node.close()
        await bucket.close()

    uvloop.run(work())


if __name__ == "__main__":
    serve(sys.argv[1])
