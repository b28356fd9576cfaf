"""A connection on the ordinary way, as far as the quick one knows it when it hands over."""

from typing import Any, Protocol


class Ordinary(Protocol):
    """A connection that goes the ordinary way."""

    def connection_made(self, transport: Any) -> None:
        """Begin to serve."""
        ...

    def data_received(self, data: bytes) -> None:
        """Take bytes in."""
        ...

    def eof_received(self) -> bool:
        """The client has said its last."""
        ...

    def pause_writing(self) -> None:
        """The client does not read."""
        ...

    async def leave(self) -> None:
        """Close behind what is being served."""
        ...
