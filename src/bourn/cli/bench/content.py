"""What is appended, and the check that what is read is just that."""

from typing import Final

import numpy as np

from bourn.cli.bench import kernels
from bourn.cli.bench.latencies import Latencies
from bourn.cli.failures import Refused
from bourn.limits import MIB
from bourn.wire.protobuf import encode_varint

POOL_BYTES: Final = 16 * MIB  # bodies of this many bytes are all different, and do not compress
RECORD_OVERHEAD_BYTES: Final = 8 + 2 + 4 + 8  # metered: the record, its header, name and value
FAULTS: Final = {
    kernels.MALFORMED: "the batch is malformed",
    kernels.NOT_NEXT: "another record is in its place",
    kernels.OTHER_SIZE: "its body has another size",
    kernels.NO_HASH: "its hash is missing",
    kernels.OTHER_CONTENT: "its content or its order has changed",
}


class Source:
    """Makes frames of records that each weigh `record_bytes`."""

    def __init__(self, record_bytes: int, pool_bytes: int = POOL_BYTES) -> None:
        self.record_bytes = record_bytes
        self._body_bytes = record_bytes - RECORD_OVERHEAD_BYTES
        pool = np.random.default_rng(0).bytes(pool_bytes + self._body_bytes)
        self._pool = np.frombuffer(pool, np.uint8)
        self._state = np.array([0, self._body_bytes], np.int64)
        self._chain = np.zeros(1, np.uint64)

    @property
    def chain_hash(self) -> int:
        """The hash of the last record, and so of all."""
        return int(self._chain[0])

    def frame(self, count: int, timestamp: int) -> bytes:
        """Return the next `count` records as a frame of an append session, uncompressed."""
        body = 1 + len(encode_varint(self._body_bytes)) + self._body_bytes
        inner = 1 + len(encode_varint(timestamp)) + kernels.HASH_HEADER_BYTES + body
        size = kernels.FRAME_HEAD_BYTES + count * (1 + len(encode_varint(inner)) + inner)
        room = np.empty(size, np.uint8)
        end = kernels.fill(room, self._pool, self._state, self._chain, count, timestamp)
        if end != size:
            raise RuntimeError(f"a frame of {size} bytes has come out at {end}")
        return room.tobytes()


class Check:
    """Takes what a reader receives, in order; a record that is not the next one ends it."""

    def __init__(self, record_bytes: int) -> None:
        self._state = np.array([0, record_bytes - RECORD_OVERHEAD_BYTES, 0, 0], np.int64)
        self._chain = np.zeros(1, np.uint64)
        self.latencies = Latencies()

    @property
    def records(self) -> int:
        """How many were read."""
        return int(self._state[2])

    @property
    def chain_hash(self) -> int:
        """The hash of the last record, and so of all."""
        return int(self._chain[0])

    def batch(self, message: bytes, now: int) -> None:
        """Check a ReadBatch; Refused where it is not what was appended."""
        data = np.frombuffer(message, np.uint8)
        fault = kernels.check(data, self._state, self._chain, now, self.latencies.counts)
        if fault != kernels.OK:
            raise Refused(f"record {int(self._state[0])} is not what was appended: {FAULTS[fault]}")
