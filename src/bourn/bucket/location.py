"""Where a bucket is, as people write it.

memory:                      in this process, gone with it
/path  ./path  file:///path  a directory of a disk
s3://bucket/prefix           S3, or what speaks its protocol
gs://bucket/prefix           Google Cloud Storage
az://container/prefix        Azure Blob Storage
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

from bourn.bucket.local import LocalBucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, is_key
from bourn.bucket.stores import RemoteOptions, open_azure, open_gcs, open_s3
from bourn.errors import BucketRefused
from bourn.limits import BUCKET_PREFIX_BYTES_MAX, LOCAL_THREADS

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)
_BUCKET_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,61}[A-Za-z0-9]")
_REMOTE: Final = {"s3": open_s3, "gs": open_gcs, "az": open_azure}
_KNOWN: Final = "memory:, a path, file:///path, s3://bucket/prefix, gs://… or az://…"
DEFAULT_OPTIONS: Final = RemoteOptions()


class Location(NamedTuple):
    """A checked location: `place` is a path, or the bucket's name; nothing is opened yet."""

    scheme: str
    place: str = ""
    prefix: str = ""

    def open(
        self,
        options: RemoteOptions = DEFAULT_OPTIONS,
        *,
        threads: int = LOCAL_THREADS,
        gentle: bool = False,
        environ: Mapping[str, str] = os.environ,
    ) -> Bucket:
        """Open the bucket; what `options` leaves empty comes from `environ`.

        `gentle` is for who works in bulk on the disk of a server (`LocalBucket`).
        """
        if self.scheme == "memory":
            return MemoryBucket()
        if self.scheme == "file":
            return LocalBucket(Path(self.place), threads=threads, gentle=gentle)
        if self.scheme == "s3":
            options = options.with_environment(environ)
        return _REMOTE[self.scheme](self.place, self.prefix, options)


def parse_bucket(text: str) -> Location:
    """Check a location, or raise `BucketRefused` with one line on how to write it."""
    found = _SCHEME.fullmatch(text)
    if not text or "\0" in text:
        raise BucketRefused("bucket", f"names no place: write {_KNOWN}")
    if found is None:
        return Location("file", text)
    scheme, rest = found[1].lower(), found[2]
    if scheme == "memory":
        if rest.strip("/"):
            raise BucketRefused("bucket", "memory: takes nothing behind the colon")
        return Location("memory")
    if scheme == "file":
        return _parse_file(rest)
    if scheme in _REMOTE:
        return _parse_remote(scheme, rest)
    raise BucketRefused("bucket", f"unknown scheme {scheme}: write {_KNOWN}")


def _parse_file(rest: str) -> Location:
    if not rest.startswith("///") or rest == "///":
        raise BucketRefused("bucket", "write file:///path, with three slashes and a path")
    return Location("file", unquote(rest[2:]))


def _parse_remote(scheme: str, rest: str) -> Location:
    if "@" in rest:  # not quoted in the message: it may hold a secret
        raise BucketRefused("bucket", "credentials do not belong into a URL: set AWS_ACCESS_KEY_ID")
    name, _, prefix = rest.removeprefix("//").partition("/")
    prefix = prefix.rstrip("/")
    if not rest.startswith("//") or not _BUCKET_NAME.fullmatch(name):
        raise BucketRefused("bucket", f"write {scheme}://bucket/prefix, with the bucket's name")
    if prefix and (not is_key(prefix) or len(prefix) > BUCKET_PREFIX_BYTES_MAX):
        raise BucketRefused(
            f"{scheme}://{name}",
            "a prefix is made of letters, digits, '.', '_', '-' and slashes between them",
        )
    return Location(scheme, name, prefix)
