"""Properties of the grammar, and random histories of calls against a dict."""

import asyncio
import string
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, check_key, is_key
from bourn.errors import BucketMisuse, ObjectExists, ObjectMissing

Call = tuple[Any, ...]

LETTERS = frozenset(string.ascii_letters + string.digits + "._-")

segments = st.sampled_from(["a", "b", "a-", "a.", "-", "a0", "A", "_", "..."])
keys = st.lists(segments, min_size=1, max_size=3).map("/".join)
prefixes = st.one_of(st.just(""), keys.map("{}/".format))
contents = st.binary(max_size=20)
calls = st.one_of(
    st.tuples(st.just("put_if_absent"), keys, contents),
    st.tuples(st.just("put"), keys, contents),
    st.tuples(st.just("get"), keys, st.integers(0, 25), st.integers(0, 25)),
    st.tuples(st.just("delete"), keys),
    st.tuples(st.just("list"), prefixes, st.one_of(st.just(""), keys)),
)


def is_legal(text: str) -> bool:
    """Say the grammar a second time, the slow way."""
    return len(text) <= 768 and all(
        0 < len(segment) <= 255 and set(segment) <= LETTERS and segment not in {".", ".."}
        for segment in text.split("/")
    )


@given(st.text(alphabet="ab./-_ é\n\0~", max_size=12))
@example("a" * 255)
@example("a" * 256)
@example("/".join(["a" * 255] * 3))
@example("a" * 255 + "/" + "a" * 255 + "/" + "a" * 256)
@example("/".join(["a"] * 384))
@example("/".join(["a"] * 385))
def test_the_grammar_of_keys_is_what_it_says(text: str) -> None:
    assert is_key(text) == is_legal(text)
    if is_legal(text):
        check_key(text)
    else:
        with pytest.raises(BucketMisuse):
            check_key(text)


@given(st.text(max_size=500))
def test_a_refusal_of_a_key_is_one_short_line(text: str) -> None:
    if not is_key(text):
        with pytest.raises(BucketMisuse) as caught:
            check_key(text)
        assert caught.value.message.isprintable()
        assert len(caught.value.message) < 150


class Model:
    """What a bucket must do, on a dict."""

    def __init__(self, bucket: Bucket) -> None:
        self.bucket = bucket
        self.objects: dict[str, bytes] = {}
        self.directories: set[str] = set()  # a disk keeps them when their objects go

    def is_excluded(self, key: str) -> bool:
        return key in self.directories or any(key.startswith(f"{other}/") for other in self.objects)

    def note(self, key: str, data: bytes) -> None:
        self.objects[key] = data
        parts = key.split("/")
        self.directories.update("/".join(parts[:count]) for count in range(1, len(parts)))

    async def put_if_absent(self, key: str, data: bytes) -> None:
        if key in self.objects:
            with pytest.raises(ObjectExists):
                await self.bucket.put_if_absent(key, data)
        elif not self.is_excluded(key):
            await self.bucket.put_if_absent(key, data)
            self.note(key, data)

    async def put(self, key: str, data: bytes) -> None:
        if not self.is_excluded(key):
            await self.bucket.put(key, data)
            self.note(key, data)

    async def get(self, key: str, start: int, length: int) -> None:
        if key in self.objects:
            part = await self.bucket.get_range(key, start, length)
            assert part == self.objects[key][start : start + length]
            assert await self.bucket.get(key) == self.objects[key]
        else:
            with pytest.raises(ObjectMissing):
                await self.bucket.get(key)
            with pytest.raises(ObjectMissing):
                await self.bucket.get_range(key, start, length)

    async def delete(self, key: str) -> None:
        if not self.is_excluded(key):
            await self.bucket.delete(key)
            self.objects.pop(key, None)

    async def list(self, prefix: str, after: str) -> None:
        found = [info async for info in self.bucket.list(prefix, after)]
        assert found == [
            (key, len(data))
            for key, data in sorted(self.objects.items())
            if key.startswith(prefix) and key > after
        ]


async def check_history(bucket: Bucket, history: list[Call]) -> None:
    model = Model(bucket)
    for name, *arguments in history:
        await getattr(model, name)(*arguments)
    await model.list("", "")
    await bucket.close()


@given(st.lists(calls, max_size=40))
def test_a_memory_bucket_is_a_sorted_dict(history: list[Call]) -> None:
    asyncio.run(check_history(MemoryBucket(), history))


@pytest.mark.parametrize("nameless", [True, False])
@settings(max_examples=25, deadline=None)
@given(history=st.lists(calls, max_size=30))
def test_a_local_bucket_is_a_sorted_dict(nameless: bool, history: list[Call]) -> None:
    with tempfile.TemporaryDirectory() as root:
        bucket = LocalBucket(Path(root), nameless=nameless, threads=2)
        asyncio.run(check_history(bucket, history))
