"""What whatever runs on a bucket begins with: where the bucket is, where the log goes."""

import logging
import sys
from pathlib import Path
from typing import Final

from bourn.bucket.location import Location, parse_bucket
from bourn.bucket.port import is_key
from bourn.cli.failures import Misused
from bourn.errors import BucketRefused
from bourn.limits import BUCKET_PREFIX_BYTES_MAX

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def locate(bucket: str, path: str) -> Location:
    """Return the part of the bucket that is to be used."""
    try:
        location = parse_bucket(bucket)
    except BucketRefused as error:
        raise Misused(error.message) from None
    path = path.strip("/")
    if not path:
        return location
    if location.scheme == "memory":
        raise Misused("path: there are no paths in memory: leave it out")
    if location.scheme == "file":
        if not is_key(path):
            raise Misused(f"path: {path!r} must be letters, digits, '.', '_', '-' and slashes")
        return location._replace(place=str(Path(location.place) / path))
    prefix = f"{location.prefix}/{path}" if location.prefix else path
    if not is_key(prefix) or len(prefix) > BUCKET_PREFIX_BYTES_MAX:
        raise Misused(
            f"path: {prefix!r} must be letters, digits, '.', '_', '-' and slashes between them, "
            f"at most {BUCKET_PREFIX_BYTES_MAX} in all"
        )
    return location._replace(prefix=prefix)


def log_to_stderr(level: str) -> None:
    """Let the log go where it belongs."""
    # Others' debugging would drown ours: they begin at warnings.
    logging.basicConfig(level=logging.WARNING, format=LOG_FORMAT, stream=sys.stderr)
    logging.getLogger("bourn").setLevel(level.upper())
