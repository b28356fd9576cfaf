"""What this machine can do at most: the limits that any server on it meets.

    python -m bench.ceilings [--seconds 1.0]

Loopback: bytes a second through one TCP connection between two processes, and the round trip of
256 bytes there and back. Disk: what a create-only put of 8 KiB costs by bare system calls (file,
`fdatasync`, link, `fsync` of the directory), and its `fdatasync` alone. Memory: a copy of 64 MiB,
and of 1 MiB, which stays in the caches. Checksum: xxh3-64 over 1 MiB. Prints a table, and
writes bench/results/ceilings.json.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson
from xxhash import xxh3_64_intdigest

from bench.engine import report
from bench.engine.case import latency_figures
from bench.engine.target import IN_MEMORY, directory_in, file_system_of
from bourn.limits import KIB, MIB

REPOSITORY: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = REPOSITORY / "bench" / "results" / "ceilings.json"
MESSAGE_BYTES: Final = 256
PUT_BYTES: Final = 8 * KIB
CHUNK_BYTES: Final = 256 * KIB
JOIN_SECS_MAX: Final = 10.0


def main() -> None:
    """Measure, print, save."""
    parser = argparse.ArgumentParser(prog="python -m bench.ceilings", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each figure")
    parser.add_argument("--directory", type=Path, default=REPOSITORY / ".cache" / "bench")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    file_system = file_system_of(options.directory.resolve())
    if file_system in IN_MEMORY:
        parser.error(f"{file_system} is no disk: give --directory one that is")
    facts = report.machine(file_system, "")
    with directory_in(options.directory) as directory:
        figures = measure(directory, options.seconds)
    for name, value in figures.items():
        print(f"{name:34}{value:>14,.4g}")
    shape = {"machine": facts, "figures": figures}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_bytes(
        orjson.dumps(shape, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    )


def measure(directory: Path, seconds: float) -> dict[str, float]:
    """All figures, rounded to four digits."""
    figures: dict[str, Any] = {
        **loopback_rate(seconds),
        **latency_figures(loopback_rounds(seconds), "loopback_round_trip_"),
    }
    puts, syncs = disk_puts(directory, seconds)
    figures |= latency_figures(puts, "put_8_kib_")
    figures |= latency_figures(syncs, "fdatasync_8_kib_")
    figures |= memory(seconds)
    return {name: float(f"{value:.4g}") for name, value in figures.items()}


def loopback_rate(seconds: float) -> dict[str, float]:
    """Send as fast as it goes to a process that takes and drops it."""
    with _partner(_sink) as link:
        chunk = bytes(CHUNK_BYTES)
        sent = 0
        began = time.perf_counter()
        while (took := time.perf_counter() - began) < seconds:
            link.sendall(chunk)
            sent += len(chunk)
        link.shutdown(socket.SHUT_WR)
        link.recv(1)  # it has taken all
        took = time.perf_counter() - began
    return {"loopback_mb_per_s": sent / took / 1e6}


def loopback_rounds(seconds: float) -> list[float]:
    """Say something, and wait for the echo, again and again."""
    message = bytes(MESSAGE_BYTES)
    waits: list[float] = []
    with _partner(_echo) as link:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            link.sendall(message)
            _take(link, MESSAGE_BYTES)
            waits.append(time.perf_counter() - began)
    return waits


@contextmanager
def _partner(work: Callable[[socket.socket], None]) -> Iterator[socket.socket]:
    """A connection to a process of its own that does `work` with the other end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        process = multiprocessing.get_context("fork").Process(
            target=_accept, args=(listening, work)
        )
        process.start()
        link = socket.create_connection(listening.getsockname())
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield link
    finally:
        link.close()
        process.join(JOIN_SECS_MAX)
        if process.is_alive():
            process.kill()
            process.join()


def _accept(listening: socket.socket, work: Callable[[socket.socket], None]) -> None:
    link, _ = listening.accept()
    with link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        work(link)


def _sink(link: socket.socket) -> None:
    room = bytearray(CHUNK_BYTES)
    while link.recv_into(room):
        pass
    link.sendall(b".")


def _echo(link: socket.socket) -> None:
    while data := link.recv(MESSAGE_BYTES):
        link.sendall(data)


def _take(link: socket.socket, size: int) -> None:
    while size:
        size -= len(link.recv(size))


def disk_puts(directory: Path, seconds: float) -> tuple[list[float], list[float]]:
    """Put objects one by one, as safely as a create-only put must; whole, and the sync of data."""
    data = bytes(PUT_BYTES)
    puts: list[float] = []
    syncs: list[float] = []
    parent = os.open(directory, os.O_RDONLY)
    try:
        end = time.perf_counter() + seconds
        while (began := time.perf_counter()) < end:
            handle, name = tempfile.mkstemp(dir=directory)
            os.write(handle, data)
            syncing = time.perf_counter()
            os.fdatasync(handle)
            syncs.append(time.perf_counter() - syncing)
            os.close(handle)
            os.link(name, f"{name}.put")
            Path(name).unlink()
            os.fsync(parent)
            puts.append(time.perf_counter() - began)
    finally:
        os.close(parent)
    return puts, syncs


def memory(seconds: float) -> dict[str, float]:
    """Copies and checksums."""
    large = np.ones(64 * MIB, np.uint8)
    target = np.empty_like(large)
    small, small_target = large[:MIB], target[:MIB]
    data = large[:MIB].tobytes()
    return {
        "memcpy_gb_per_s": _rate(lambda: np.copyto(target, large), large.nbytes, seconds),
        "memcpy_1_mib_gb_per_s": _rate(
            lambda: np.copyto(small_target, small), small.nbytes, seconds
        ),
        "xxh3_gb_per_s": _rate(lambda: xxh3_64_intdigest(data), len(data), seconds),
    }


def _rate(work: Callable[[], object], size: int, seconds: float) -> float:
    """Gigabytes a second, by the median of the calls."""
    work()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end or not took:
        work()
        took.append(time.perf_counter() - began)
    return size / statistics.median(took) / 1e9


if __name__ == "__main__":
    main()
