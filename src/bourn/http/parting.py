"""The end of an HTTP/2 connection whose client does not confirm that it was told to go.

The library says GOAWAY and a ping, and waits for the answer to the ping: by then, every request
that the client sent before it knew has come. python-h2, and with it the official Python SDK, takes
GOAWAY for the end and never answers. Where nothing is under way in either direction, that is no
reason to wait for long.
"""

import struct
from typing import Any, Final

from bourn.http.sockets import untaken_bytes

_GOAWAY: Final = struct.Struct(">3sBBIII")
_LENGTH: Final = (8).to_bytes(3, "big")
_TYPE: Final = 7
_NO_ERROR: Final = 0


def is_over(transport: Any, driver: Any) -> bool:
    """Whether no stream is open, and the client's machine has all that it was sent."""
    return not (
        transport.is_closing()
        or driver.num_streams
        or transport.get_write_buffer_size()
        or untaken_bytes(transport.get_extra_info("socket"))
    )


def last_word(driver: Any) -> bytes:
    """A frame that says which request was the last to be taken in: later ones never happened."""
    return _GOAWAY.pack(_LENGTH, _TYPE, 0, 0, driver.last_processed_id, _NO_ERROR)
