"""Where a command's request goes: `s2://basin/stream`, and the endpoints' URLs.

--endpoint URL         for everything
S2_ACCOUNT_ENDPOINT    for basins
S2_BASIN_ENDPOINT      for streams; `{basin}` in it stands for the basin's name
http://127.0.0.1:8080  where nothing is said
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bourn.cli.failures import Misused
from bourn.errors import BadName
from bourn.model import names

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:8080"
ACCOUNT_VARIABLE: Final = "S2_ACCOUNT_ENDPOINT"
BASIN_VARIABLE: Final = "S2_BASIN_ENDPOINT"
SCHEME: Final = "s2://"
PLACEHOLDER: Final = "{basin}"


class StreamAddress(NamedTuple):
    """A stream, as a command names it."""

    basin: str
    stream: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.basin}/{self.stream}"


class Endpoint(NamedTuple):
    """A checked URL; `names_basin` tells that its host does, so that no header must."""

    is_encrypted: bool
    host: str
    port: int
    path: str
    names_basin: bool = False

    @property
    def url(self) -> str:
        """The endpoint for people, without the API's version."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_encrypted else 'http'}://{host}:{self.port}"


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
    if flag is not None:
        return _parse(flag, "--endpoint")
    return _parse(environ.get(ACCOUNT_VARIABLE) or DEFAULT_ENDPOINT, ACCOUNT_VARIABLE)


def basin_endpoint(flag: str | None, environ: Mapping[str, str], basin: str) -> Endpoint:
    """Return where a basin's streams are."""
    url, origin = flag, "--endpoint"
    if url is None:
        url, origin = environ.get(BASIN_VARIABLE) or DEFAULT_ENDPOINT, BASIN_VARIABLE
    endpoint = _parse(url.replace(PLACEHOLDER, basin), origin)
    return endpoint._replace(names_basin=PLACEHOLDER in url)


def _parse(url: str, origin: str) -> Endpoint:
    remedy = f"{origin}: {url!r} is no endpoint: write one such as {DEFAULT_ENDPOINT}"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Misused(remedy) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise Misused(remedy)
    if parts.query or parts.fragment:
        raise Misused(remedy)
    is_encrypted = parts.scheme == "https"
    path = parts.path.rstrip("/") or "/v1"
    return Endpoint(is_encrypted, parts.hostname, port or (443 if is_encrypted else 80), path)
