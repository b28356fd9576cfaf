"""Buckets of S3, GCS and Azure, and of whatever speaks their protocols, through obstore.

Create-only puts are conditional requests (`If-None-Match: *` on S3), which the store decides
atomically. Three facts of obstore shape the calls: a put above 5 MiB becomes a multipart upload
unless its mode is "create" or multipart is forbidden; its retries can meet their own earlier
success and report "already exists", so they are few, and callers compare contents anyway; and its
error texts hold whole responses, so only a status, an error code and words of ours leave here.

obstore keeps threads of its own: never fork a process that has used it.
"""

import re
from collections.abc import AsyncGenerator
from typing import Final

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    GenericError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, S3Store

from bourn.bucket.port import (
    Bucket,
    Data,
    ObjectInfo,
    check_key,
    check_listing,
    check_range,
    is_key,
)
from bourn.errors import BucketError, BucketRefused, BucketUnavailable, ObjectExists, ObjectMissing
from bourn.limits import LIST_PAGE_KEYS

Store = S3Store | GCSStore | AzureStore

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([A-Za-z]{1,64})</Code>")
_KIND: Final = re.compile(r"kind: (Timeout|Connect)\b")
_NO_BUCKET: Final = re.compile(
    r"NoSuchBucket|ContainerNotFound|bucket does not exist", re.IGNORECASE
)
_METADATA_SERVICE: Final = re.compile(r"169\.254\.169\.254|metadata\.google|fd00:ec2::254")
_STATUSES_THAT_PASS: Final = frozenset({408, 409, 412, 425, 429})
_DENIED: Final = frozenset({401, 403})
_NOT_IMPLEMENTED: Final = 501
_NOT_FOUND: Final = 404
_CLIENT_ERROR, _SERVER_ERROR = 400, 500


class RemoteBucket:
    """A bucket of a store, or the part of it below `prefix`."""

    is_remote: Final = True

    def __init__(self, name: str, store: Store, prefix: str) -> None:
        self.name: Final = name
        self._store = store
        self._prefix = f"{prefix}/" if prefix else ""

    async def put_if_absent(self, key: str, data: Data) -> None:
        """Create the object, or raise `ObjectExists`."""
        check_key(key)
        try:
            await self._store.put_async(self._prefix + key, data, mode="create")
        except (AlreadyExistsError, PreconditionError) as error:
            # obstore says so for every conflict, S3's "another create is under way" included:
            # make sure that there is an object, for `ObjectExists` promises one.
            if await self._size(key) is None:
                raise self._failure(key, error) from None
            raise ObjectExists(key) from None
        except (BaseError, OSError) as error:
            raise self._failure(key, error) from None

    async def put(self, key: str, data: Data) -> None:
        """Create or replace the object."""
        check_key(key)
        try:
            await self._store.put_async(self._prefix + key, data, use_multipart=False)
        except (BaseError, OSError) as error:
            raise self._failure(key, error) from None

    async def get(self, key: str) -> bytes:
        """Return the whole object."""
        check_key(key)
        try:
            result = await self._store.get_async(self._prefix + key)
            return (await result.bytes_async()).to_bytes()
        except (BaseError, OSError) as error:
            raise self._read_failure(key, error) from None

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return the object's bytes in [start, start + length)."""
        check_range(key, start, length)
        if length == 0:
            if await self._size(key) is None:
                raise ObjectMissing(key)
            return b""
        try:
            found = await self._store.get_range_async(
                self._prefix + key, start=start, length=length
            )
            return found.to_bytes()
        except GenericError as error:
            # A range that starts at or behind the end is an error of HTTP, and an empty one here.
            size = await self._size(key)
            if size is not None and size <= start:
                return b""
            raise self._read_failure(key, error) from None
        except (BaseError, OSError) as error:
            raise self._read_failure(key, error) from None

    async def list(self, prefix: str, after: str = "") -> AsyncGenerator[ObjectInfo, None]:
        """Yield the objects under `prefix` behind `after`, in ascending order."""
        check_listing(prefix, after)
        if after > prefix and not after.startswith(prefix):
            return  # behind everything that begins with the prefix
        pages = self._store.list(
            self._prefix + prefix,
            offset=self._prefix + after if after.startswith(prefix) and after else None,
            chunk_size=LIST_PAGE_KEYS,
        )
        last = after
        try:
            async for page in pages:
                for found in page:
                    key = found["path"].removeprefix(self._prefix)
                    if not is_key(key):
                        continue  # somebody else's
                    if key <= last:
                        raise BucketRefused(key, "the store lists out of order: use another one")
                    last = key
                    yield ObjectInfo(key, found["size"])
        except (BaseError, OSError) as error:
            raise self._failure(prefix or "*", error) from None

    async def delete(self, key: str) -> None:
        """Remove the object if it is there."""
        check_key(key)
        try:
            await self._store.delete_async(self._prefix + key)
        except (BaseError, OSError) as error:
            failure = self._read_failure(key, error)
            if not isinstance(failure, ObjectMissing):
                raise failure from None

    async def close(self) -> None:
        """Nothing to wait for: idle connections close by themselves, calls end with their tasks."""

    async def _size(self, key: str) -> int | None:
        try:
            return (await self._store.head_async(self._prefix + key))["size"]
        except (BaseError, OSError) as error:
            failure = self._read_failure(key, error)
            if isinstance(failure, ObjectMissing):
                return None
            raise failure from None

    def _read_failure(self, key: str, error: Exception) -> BucketError:
        if isinstance(error, FileNotFoundError) and not _NO_BUCKET.search(str(error)):
            return ObjectMissing(key)
        return self._failure(key, error)

    def _failure(self, key: str, error: Exception) -> BucketError:
        """Say what happened in words of ours: texts of the store may hold signatures and keys."""
        text = str(error)
        found = _STATUS.search(text)
        status = int(found[1]) if found else 0
        code = _CODE.search(text)
        shown = " ".join(filter(None, (str(status or ""), code[1] if code else ""))) or "no status"
        if _METADATA_SERVICE.search(text):  # asked when nothing else gave credentials
            return BucketUnavailable(key, f"{self.name} has no credentials: set them ({shown})")
        remedy = _refusal(error, text, status)
        if remedy:
            return BucketRefused(key, f"{self.name} {remedy} ({shown})")
        if status:
            return BucketUnavailable(key, f"{self.name} failed ({shown})")
        return BucketUnavailable(key, f"{self.name} {_no_answer(text)}")


def _refusal(error: Exception, text: str, status: int) -> str:
    """Say how to mend what will fail again the same way; nothing for what may pass."""
    if isinstance(error, FileNotFoundError) or status == _NOT_FOUND:
        return "does not exist: create the bucket"
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or status in _DENIED:
        return "denies access: check the credentials and what they allow"
    if "redirect" in text:
        return "is in another region: set AWS_REGION"
    if status == _NOT_IMPLEMENTED:
        return "cannot do this: use another store"
    if _CLIENT_ERROR <= status < _SERVER_ERROR and status not in _STATUSES_THAT_PASS:
        return "refuses the request: check endpoint, region and credentials"
    return ""


def _no_answer(text: str) -> str:
    kind = _KIND.search(text)
    if kind and kind[1] == "Timeout":
        return "did not answer in time"
    if kind:
        return "cannot be reached: check the endpoint and the network"
    return "gave no usable answer"


async def require_create_only(bucket: Bucket, key: str) -> None:
    """Raise `BucketRefused` for a store that ignores the condition of a create-only put.

    On such a store two writers would overwrite each other unseen. Leaves a small object at `key`.
    """
    for _ in range(2):
        try:
            await bucket.put_if_absent(key, b"create-only puts are needed\n")
        except ObjectExists:
            return
    raise BucketRefused(key, f"{bucket.name} ignores create-only puts: use another store")
