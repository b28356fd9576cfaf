"""The loop stays awake behind an answer, as long as that pays."""

import asyncio

from bourn.http.attention import Attention
from bourn.limits import ATTENTION_SKIPS_MAX, ATTENTION_TURNS


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)  # noqa: TID251  a turn of the loop


async def turns_until_sleep(attention: Attention) -> int:
    count = 0
    while attention.is_awake:
        await turns(1)
        count += 1
    return count


def answers_until_awake(attention: Attention) -> int:
    count = 0
    while not attention.is_awake:
        attention.hold()
        count += 1
    return count


def test_the_loop_takes_some_turns_behind_an_answer_and_then_sleeps():
    async def scenario() -> None:
        attention = Attention()
        attention.hold()
        assert await turns_until_sleep(attention) == ATTENTION_TURNS

    asyncio.run(scenario())


def test_an_answer_in_time_has_all_its_turns_too():
    async def scenario() -> None:
        attention = Attention()
        attention.hold()
        await turns(ATTENTION_TURNS - 1)
        attention.hold()
        assert await turns_until_sleep(attention) == ATTENTION_TURNS

    asyncio.run(scenario())


def test_where_nobody_asks_in_time_fewer_and_fewer_answers_keep_it_awake():
    async def scenario() -> None:
        attention = Attention()
        needed = []
        for _ in range(9):
            needed.append(answers_until_awake(attention))
            await turns_until_sleep(attention)
        assert needed == [1, 2, 4, 8, 16, 32, 64, 64, 64]
        assert needed[-1] == ATTENTION_SKIPS_MAX + 1

    asyncio.run(scenario())


def test_one_who_asks_in_time_has_its_attention_soon_again():
    async def scenario() -> None:
        attention = Attention()
        for _ in range(5):
            answers_until_awake(attention)
            await turns_until_sleep(attention)
        answers_until_awake(attention)
        attention.hold()
        await turns_until_sleep(attention)
        assert answers_until_awake(attention) == 2

    asyncio.run(scenario())
