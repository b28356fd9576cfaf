"""Runs the scenarios that standard input names; the protocol is drawn in tests/compat/driver.py."""

import asyncio
import json
import sys
import traceback
from types import FrameType

from tests.compat.pysdk import account, appending, control, reading, restarts
from tests.compat.pysdk.public import functions
from tests.compat.pysdk.world import World

called: set[object] = set()


def trace(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        called.add(frame.f_code)


async def run(name: str, compression: str) -> str | None:
    found = [
        getattr(module, name)
        for module in (account, appending, control, reading, restarts)
        if hasattr(module, name)
    ]
    try:
        async with World(compression) as world:
            await found[0](world)
    except Exception:  # noqa: BLE001  whatever it is, the harness shows it
        return traceback.format_exc()
    return None


def main(tracing: str) -> None:
    public = functions()
    if tracing == "trace":
        sys.setprofile(trace)
    while line := sys.stdin.readline():
        message = json.loads(line)
        if "used" in message:
            reply: dict[str, object] = {
                "used": [name for name, code in public.items() if code in called]
            }
        else:
            reply = {"error": asyncio.run(run(message["run"], message["compression"]))}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
