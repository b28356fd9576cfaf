"""The limits of HTTP, in httpunk's words."""

from typing import Final

from httpunk import Backend
from httpunk.util import auto

from bourn.limits import (
    CONCURRENT_STREAMS_MAX,
    CONNECTION_WINDOW_BYTES,
    HEAD_BYTES_MAX,
    HEADERS_MAX,
    MIB,
    SEND_BUFFER_BYTES_MAX,
    STREAM_WINDOW_BYTES,
)

# A batch of 1 MiB as one frame: each costs as much as a small one (`settling` says what it takes).
FRAME_BYTES_MAX: Final = 2 * MIB


def make_builder(head_secs: float) -> auto.Builder:
    """What makes connections of sockets; a head must come within the time."""
    builder = auto.Builder(backend=Backend.asyncio.create())
    http2 = builder.http2()
    http2.max_concurrent_streams(CONCURRENT_STREAMS_MAX)
    http2.initial_stream_window_size(STREAM_WINDOW_BYTES)
    http2.initial_connection_window_size(CONNECTION_WINDOW_BYTES)
    http2.max_frame_size(FRAME_BYTES_MAX)
    http2.max_header_list_size(HEAD_BYTES_MAX)
    http2.max_send_buf_size(SEND_BUFFER_BYTES_MAX)
    http1 = builder.http1()
    http1.max_headers(HEADERS_MAX)
    http1.max_buf_size(HEAD_BYTES_MAX)
    http1.header_read_timeout(head_secs)
    return builder
