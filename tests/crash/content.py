"""Batches out of numbers: writer and checker make the same records from the seed alone.

The first record of a batch names it, in a header or in the first bytes of its body, so that no
two batches are alike. Only the smallest ones, a single plain record of a few bytes, may repeat;
whoever compares them counts.
"""

from random import Random
from typing import Final

import xxhash

from bourn.limits import KIB, MIB
from bourn.model.record import Headers, Record, fence_record, trim_record

RECORDS_MAX: Final = 50
BODY_BYTES_MAX: Final = 64 * KIB
BATCH_BYTES_MAX: Final = 256 * KIB
HASH_BYTES: Final = 8

PIPED: Final = "piped"  # the stream that is written by sessions, which ask once who leads

RECORDS: Final = "records"
LARGE: Final = "large"
FENCE: Final = "fence"
TRIM: Final = "trim"

_NUMBER_BYTES: Final = 8
_TINY_BYTES_MAX: Final = 8
_NOISE: Final = Random(0).randbytes(MIB + BODY_BYTES_MAX)


def make_records(seed: int, number: int, kind: str = RECORDS, argument: str = "") -> list[Record]:
    """Return the records of batch `number`; a fence or a trim comes behind a few of them."""
    rng = Random(f"{seed}/{number}")
    roll = rng.random()
    if kind == FENCE:
        return [*_named(rng, number, rng.randint(1, 3), 64), fence_record(argument)]
    if kind == TRIM:
        return [*_named(rng, number, rng.randint(1, 3), 64), trim_record(int(argument))]
    if kind == LARGE or roll < 0.01:
        return [_first(rng, number, MIB - KIB)]
    if roll < 0.1:
        return [Record(rng.randbytes(rng.randint(1, _TINY_BYTES_MAX)))]
    if roll < 0.3:
        return [_first(rng, number, _size(rng))]
    return _named(rng, number, rng.randint(2, RECORDS_MAX), _size(rng))


def make_token(number: int) -> str:
    """Return the token that fence batch `number` sets: no other fence sets the same."""
    return f"token-{number}"


def token_number(token: str) -> int:
    """Return the number of the batch that has set the token."""
    return int(token.removeprefix("token-"))


def hash_record(headers: Headers, body: bytes) -> bytes:
    """Return 8 bytes that stand for everything that a client has put into a record."""
    if not headers:
        return xxhash.xxh3_64_digest(body)
    digest = xxhash.xxh3_64(seed=len(headers))
    for name, value in headers:
        digest.update(b"%d,%d:" % (len(name), len(value)) + name + value)
    digest.update(body)
    return digest.digest()


def hash_records(records: list[Record]) -> list[bytes]:
    """Return the hash of each record."""
    return [hash_record(record.headers, record.body) for record in records]


def _size(rng: Random) -> int:
    """Small ones are common; every order of magnitude is there."""
    return int(2 ** (16 * rng.random() ** 1.5))


def _body(rng: Random, size_bytes: int) -> bytes:
    at = rng.randrange(len(_NOISE) - size_bytes)
    return _NOISE[at : at + size_bytes]


def _first(rng: Random, number: int, size_bytes: int) -> Record:
    name = number.to_bytes(_NUMBER_BYTES, "big")
    if rng.random() < 0.5:
        return Record(_body(rng, size_bytes), ((b"batch", name),))
    return Record(b"batch " + name + _body(rng, size_bytes))


def _named(rng: Random, number: int, count: int, size_bytes_max: int) -> list[Record]:
    records = [_first(rng, number, rng.randint(1, size_bytes_max))]
    left = BATCH_BYTES_MAX - size_bytes_max
    while len(records) < count and left > 0:
        body = _body(rng, rng.randint(1, size_bytes_max))
        headers: Headers = ((b"at", b"%d" % len(records)),) if rng.random() < 0.2 else ()
        timestamp = rng.randrange(2**41) if rng.random() < 0.1 else None
        records.append(Record(body, headers, timestamp))
        left -= len(body)
    return records
