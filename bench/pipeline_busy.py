"""A pipeline that always has something to do: `python -m bench.pipeline_busy LOG GATE MASTER`.

It tiers a log of its own from the beginning, again and again, as long as the file GATE exists, with
the priority of a pipeline beside a server. It says `ready` once its Spark is warm, and ends with
its input.
"""

import asyncio
import os
import shutil
import signal
import sys
import threading
from pathlib import Path

from bench.pipeline_log import CLOCK, forget_table
from bench.pipeline_tier import tiered
from bourn.pipeline.priority import go_behind_others
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings

POLL_SECS = 0.05


async def work(root: Path, gate: Path, settings: PipelineSettings, spark: Spark) -> None:
    """Tier while the gate is open."""
    while True:
        if not gate.exists():  # noqa: ASYNC240  a look, twenty times a second
            await CLOCK.sleep(POLL_SECS)
            continue
        # Its files stay: deleting them would be work that no pipeline does.
        shutil.rmtree(root / "history" / "_delta_log", ignore_errors=True)
        found = await tiered(root, spark, settings)
        print(f"{found['log_mb_per_sec']}", flush=True)


def main() -> None:
    """Get ready, then work."""
    threading.Thread(target=_end_with_input, daemon=True).start()
    root, gate = Path(sys.argv[1]), Path(sys.argv[2])
    settings = PipelineSettings(master=sys.argv[3])
    go_behind_others(settings)
    spark = Spark(settings)
    forget_table(root)
    asyncio.run(tiered(root, spark, settings))
    print("ready", flush=True)
    asyncio.run(work(root, gate, settings, spark))


def _end_with_input() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)  # it leads a group of its own


if __name__ == "__main__":
    main()
