"""Clients that ask for much and read nothing: what waits for them is counted, and bounded."""

import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from bourn.http.native import NativeServer
from bourn.limits import MIB
from tests.hostile import wires
from tests.hostile.attacks import preface
from tests.hostile.wires import frame, head, request
from tests.http.clients import Api, Connected
from tests.http.edges import native_only
from tests.http.server import LoopThread, Server, eventually
from tests.support import batch

pytestmark = native_only("its own buffers are not ours to count")

BASIN = "deaf-basin"
BOUND = 3 * MIB
DEAF = 12
KINDS = {
    "unary": ("accept", "application/json"),
    "events": ("accept", "text/event-stream"),
    "session": ("content-type", "s2s/proto"),
}
WIDE = frame(wires.WINDOW_UPDATE, 0, 0, struct.pack(">I", wires.WINDOW_MAX - 65_535))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=False) as running:
        thread = LoopThread()
        with Connected("h1", running.port, thread) as connected:
            api = Api(connected.client, BASIN)
            assert api.put(f"/v1/basins/{BASIN}").status == 201
            assert api.put("/v1/streams/s").status == 201
        thread.close()

        async def fill() -> None:
            for _ in range(8):
                await running.node.append(BASIN, "s", batch(b"x" * (MIB - 8)))
            for _ in range(8):
                await running.node.append(BASIN, "s", batch(b"y" * 60_000))

        running.run(fill())
        assert isinstance(running.edge, NativeServer)
        running.edge.backlog._bytes_max = BOUND
        yield running


def deaf_socket(stack: ExitStack, server: Server) -> socket.socket:
    sock = stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(("127.0.0.1", server.port))
    return sock


def cut_count(server: Server) -> int:
    """To be asked before anything is sent: the first may be cut off at once."""
    assert isinstance(server.edge, NativeServer)
    return server.edge.backlog.cut_count


def some_are_cut_off_and_nothing_is_left(server: Server, stack: ExitStack, before: int) -> None:
    assert isinstance(server.edge, NativeServer)
    backlog = server.edge.backlog
    eventually(lambda: backlog.cut_count > before)
    assert server.call(lambda: backlog.bytes_held) <= 2 * BOUND
    stack.close()
    eventually(lambda: server.call(server.edge.busy) == 0)
    # A connection is forgotten at once; what was answering on it ends turns of the loop later.
    eventually(lambda: server.call(lambda: backlog.bytes_held) == 0)
    eventually(lambda: server.users(BASIN, "s") == 0)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_over_http1_that_nobody_reads_are_bounded(server: Server, kind: str) -> None:
    wanted = head("GET", "/v1/streams/s/records?seq_num=0", ("s2-basin", BASIN), KINDS[kind])
    before = cut_count(server)
    with ExitStack() as stack:
        for _ in range(DEAF):
            deaf_socket(stack, server).sendall(wanted * 8)
        some_are_cut_off_and_nothing_is_left(server, stack, before)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_over_http2_that_nobody_reads_are_bounded_whatever_its_windows(
    server: Server, kind: str
) -> None:
    block = request("GET", "/v1/streams/s/records?seq_num=0", ("s2-basin", BASIN), KINDS[kind])
    flags = wires.END_HEADERS | wires.END_STREAM
    before = cut_count(server)
    with ExitStack() as stack:
        for _ in range(2):
            streams = [frame(wires.HEADERS, flags, 2 * at + 1, block) for at in range(DEAF)]
            deaf_socket(stack, server).sendall(preface() + WIDE + b"".join(streams))
        some_are_cut_off_and_nothing_is_left(server, stack, before)


def test_quick_answers_that_nobody_reads_are_bounded(server: Server) -> None:
    path = "/v1/streams/s/records?seq_num=8&count=1"
    before = cut_count(server)
    with ExitStack() as stack:
        for _ in range(8 * DEAF):
            sock = deaf_socket(stack, server)
            sock.setblocking(False)
            sock.send(head("GET", path, ("s2-basin", BASIN)) * 100)
        some_are_cut_off_and_nothing_is_left(server, stack, before)
