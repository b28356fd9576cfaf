"""`bourn`, with a pulse: python -m bench.load.watched FILE [what `bourn` is told].

The loop leaves a stamp in FILE every few milliseconds, so that others can see how long its turns
are, and notes where it stands, beside FILE, when it is sent SIGUSR1. That is all that it does which
a user's server does not, and takes some 0.1 % of a core.
"""

import faulthandler
import signal
import sys
from pathlib import Path
from time import time_ns  # noqa: TID251  the clock of the kernel's stamps
from typing import Final

import uvloop

from bench.load.pulse import Pulse
from bourn.cli.main import main

PERIOD_SECS: Final = 0.005


def _beating(pulse: Pulse) -> uvloop.Loop:
    loop = uvloop.Loop()

    def beat() -> None:
        pulse.beat(time_ns())
        loop.call_later(PERIOD_SECS, beat)

    loop.call_soon(beat)
    return loop


if __name__ == "__main__":
    path = Path(sys.argv[1])
    with path.with_suffix(".stacks").open("w", encoding="utf-8") as stacks:
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
        uvloop.new_event_loop = lambda: _beating(Pulse(path))
        sys.exit(main(sys.argv[2:]))
