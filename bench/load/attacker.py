"""Runs one attack in a process of its own, and counts how often it was begun."""

import asyncio
import multiprocessing
import os
from multiprocessing.sharedctypes import Synchronized
from threading import Event
from typing import Final, Self

from tests.hostile.attacks import ATTACKS, CLOCK, Target

NOTHING = "nothing"  # the server is left in peace, to compare with
BEGINS_SECS_MAX: Final = 60.0  # bombs take a while to make
NICE: Final = 5  # the client that measures goes first, on the core that they share


class Attacker:
    """Attacks while the block runs; it must still be at it in the end, or nothing was measured."""

    def __init__(self, name: str, target: Target) -> None:
        self._begun: Synchronized[int] = multiprocessing.Value("q", 0)
        self._process = multiprocessing.Process(
            target=_attack, args=(name, target, self._begun), daemon=True
        )
        self._name = name

    def __enter__(self) -> Self:
        self._process.start()
        pause = Event()
        end = CLOCK.monotonic() + BEGINS_SECS_MAX
        while self._name != NOTHING and not self.begun and CLOCK.monotonic() < end:
            pause.wait(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        was_alive = self._process.is_alive()
        self._process.terminate()
        self._process.join()
        if not was_alive or (self._name != NOTHING and not self.begun):
            raise RuntimeError(f"{self._name} did not run: its figures mean nothing")

    @property
    def begun(self) -> int:
        """How often one of the crowd began."""
        return self._begun.value


def _attack(name: str, target: Target, begun: "Synchronized[int]") -> None:
    def count() -> None:
        begun.value += 1  # by this process alone

    async def run() -> None:
        if name == NOTHING:
            await CLOCK.sleep(3600)
        else:
            await ATTACKS[name](target._replace(begun=count))

    os.nice(NICE - os.nice(0))
    asyncio.run(run())
