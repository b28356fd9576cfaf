"""Where requests go: the URLs of endpoints.

S2_ACCOUNT_ENDPOINT    for basins
S2_BASIN_ENDPOINT      for streams; `{basin}` in it stands for the basin's name
http://127.0.0.1:8080  where nothing is said

One URL may be given for both. The API's version, /v1, is added unless the URL has a path.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bourn.errors import BadAddress

DEFAULT_ENDPOINT: Final = "http://127.0.0.1:8080"
ACCOUNT_VARIABLE: Final = "S2_ACCOUNT_ENDPOINT"
BASIN_VARIABLE: Final = "S2_BASIN_ENDPOINT"
PLACEHOLDER: Final = "{basin}"


class Endpoint(NamedTuple):
    """A checked URL; `names_basin` tells that its host does, so that no header must."""

    is_encrypted: bool
    host: str
    port: int
    path: str
    names_basin: bool = False

    @property
    def authority(self) -> str:
        """Host and port, as a request names them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The endpoint for people, without the API's version."""
        return f"{'https' if self.is_encrypted else 'http'}://{self.authority}"


def account_endpoint(url: str | None, environ: Mapping[str, str], origin: str) -> Endpoint:
    """Return where basins are managed; `origin` is what an error calls the given URL."""
    if url is not None:
        return _parse(url, origin)
    return _parse(environ.get(ACCOUNT_VARIABLE) or DEFAULT_ENDPOINT, ACCOUNT_VARIABLE)


def basin_endpoint(
    url: str | None, environ: Mapping[str, str], basin: str, origin: str
) -> Endpoint:
    """Return where a basin's streams are."""
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
        raise BadAddress(remedy) from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or "@" in parts.netloc:
        raise BadAddress(remedy)
    if parts.query or parts.fragment:
        raise BadAddress(remedy)
    is_encrypted = parts.scheme == "https"
    path = parts.path.rstrip("/") or "/v1"
    return Endpoint(is_encrypted, parts.hostname, port or (443 if is_encrypted else 80), path)
