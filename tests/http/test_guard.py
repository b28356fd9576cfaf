"""What stands under a token, and the token's end."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bourn.clock import ManualClock
from bourn.errors import Unauthenticated
from bourn.http.auth import Guard


class Ending:
    """A principal whose token ends when the test says so."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.end: Callable[[], None] = lambda: None

    @contextmanager
    def watched(self, halt: Callable[[], None]) -> Iterator[None]:
        self.end = halt
        yield


def test_nothing_is_begun_for_a_session_whose_token_has_ended() -> None:
    begun: list[None] = []

    async def begin() -> None:
        begun.append(None)

    async def scenario() -> None:
        principal: Any = Ending()
        guard = Guard(principal)
        with guard.entered():
            await guard.during(begin)
            principal.end()
            with pytest.raises(Unauthenticated):
                await guard.during(begin)

    asyncio.run(scenario())
    assert len(begun) == 1
