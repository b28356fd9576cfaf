"""How executors find the bucket: it travels with the job, and so shows in plans and logs.

Hence it holds no credential. Those come from the environment of whoever opens the bucket, on each
machine: variables, or the machine's role.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from bourn.bucket.location import Location
from bourn.bucket.port import Bucket
from bourn.bucket.stores import RemoteOptions
from bourn.errors import BucketRefused

_URIS: Final = {"s3": "s3", "gs": "gs", "az": "az"}


class Place(NamedTuple):
    """A bucket, by name and address."""

    scheme: str
    place: str
    prefix: str
    endpoint: str
    region: str

    def open(self) -> Bucket:
        """Open it with the credentials of this process's environment."""
        options = RemoteOptions(endpoint=self.endpoint, region=self.region)
        return Location(self.scheme, self.place, self.prefix).open(options, gentle=True)

    @property
    def uri(self) -> str:
        """What others call it."""
        if self.scheme == "file":
            return self.place
        return "/".join(filter(None, (f"{_URIS[self.scheme]}://{self.place}", self.prefix)))

    @property
    def storage_options(self) -> dict[str, str]:
        """How deltalake and Polars reach it; credentials they find as we do."""
        if self.scheme != "s3":
            return {}
        options = {"AWS_REGION": self.region or "us-east-1"}
        if self.endpoint:
            options["AWS_ENDPOINT_URL"] = self.endpoint
            options["AWS_ALLOW_HTTP"] = str(urlsplit(self.endpoint).scheme == "http").lower()
        return options


def place_of(location: Location, environ: Mapping[str, str]) -> Place:
    """Return what may travel of a location; `BucketRefused` for one that nobody else can open."""
    if location.scheme == "memory":
        raise BucketRefused(
            "memory:", "a bucket in memory has no pipeline: nobody but its server can read it"
        )
    if location.scheme == "file":
        return Place("file", str(Path(location.place).absolute()), "", "", "")
    if location.scheme != "s3":
        return Place(*location, "", "")
    options = RemoteOptions().with_environment(environ)
    if "@" in urlsplit(options.endpoint).netloc:
        raise BucketRefused(
            "endpoint", "credentials do not belong into a URL: set AWS_ACCESS_KEY_ID"
        )
    return Place(*location, options.endpoint, options.region)
