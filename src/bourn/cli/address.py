"""Where a command's request goes: `s2://basin/stream`, and the endpoints' URLs.

--endpoint URL         for everything
S2_ACCOUNT_ENDPOINT    for basins
S2_BASIN_ENDPOINT      for streams; `{basin}` in it stands for the basin's name
http://127.0.0.1:8080  where nothing is said
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from bourn.cli.failures import Misused
from bourn.errors import BadAddress, BadName
from bourn.model import endpoint, names
from bourn.model.endpoint import Endpoint

FLAG: Final = "--endpoint"
SCHEME: Final = "s2://"


class StreamAddress(NamedTuple):
    """A stream, as a command names it."""

    basin: str
    stream: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.basin}/{self.stream}"


def parse_basin(text: str) -> str:
    """Read `basin` or `s2://basin`."""
    name = text.removeprefix(SCHEME).removesuffix("/")
    try:
        return names.basin_name(name)
    except BadName as error:
        raise Misused(f"{text!r} names no basin: {error.message}") from None


def parse_stream(text: str) -> StreamAddress:
    """Read `s2://basin/stream`; the stream's name may hold slashes itself."""
    basin, slash, stream = text.removeprefix(SCHEME).partition("/")
    if not slash or not stream:
        raise Misused(f"{text!r} names no stream: write s2://basin/stream")
    try:
        return StreamAddress(names.basin_name(basin), names.stream_name(stream))
    except BadName as error:
        raise Misused(f"{text!r} names no stream: {error.message}") from None


def account_endpoint(flag: str | None, environ: Mapping[str, str]) -> Endpoint:
    """Return where basins are managed."""
    try:
        return endpoint.account_endpoint(flag, environ, FLAG)
    except BadAddress as error:
        raise Misused(error.message) from None


def basin_endpoint(flag: str | None, environ: Mapping[str, str], basin: str) -> Endpoint:
    """Return where a basin's streams are."""
    try:
        return endpoint.basin_endpoint(flag, environ, basin, FLAG)
    except BadAddress as error:
        raise Misused(error.message) from None
