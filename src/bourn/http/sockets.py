"""What every connection is told before its first byte, and what it has not got at its last."""

import fcntl
import socket
import struct
import termios
from typing import Final

KEEPALIVE: Final = {  # a client that vanished without a word is noticed within two minutes
    option: value
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))
    if (option := getattr(socket, name, None)) is not None
}


def prepare_socket(found: socket.socket | None) -> None:
    """Have small answers sent at once, and clients noticed that vanish without a word."""
    if found is None or found.family not in {socket.AF_INET, socket.AF_INET6}:
        return
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE.items():
        found.setsockopt(socket.IPPROTO_TCP, option, value)


def untaken_bytes(found: socket.socket) -> int:
    """How many bytes the other end has not confirmed; 0 where the system cannot say."""
    try:
        size: int = struct.unpack("i", fcntl.ioctl(found.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
    except OSError:
        return 0
    return size
