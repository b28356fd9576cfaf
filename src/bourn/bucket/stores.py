"""How to reach a remote store: credentials, time-outs, retries, signatures.

Payloads are left out of S3's signature (which takes two thirds of a put's CPU at 4 MiB) where TLS
or the machine itself keeps them whole. On plain HTTP through a network they are signed: nothing
else would notice a byte changed on the way, before the put is confirmed.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec
from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from bourn.bucket.remote import RemoteBucket, Store
from bourn.errors import BucketRefused
from bourn.limits import (
    REMOTE_CONNECT_TIMEOUT_SECS,
    REMOTE_REQUEST_TIMEOUT_SECS,
    REMOTE_RETRIES,
    REMOTE_RETRY_SECS,
)

if TYPE_CHECKING:  # not importable when running
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

_LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_REGION_DEFAULT: Final = "us-east-1"
_BACKOFF_FIRST: Final = timedelta(milliseconds=50)
_BACKOFF_MAX: Final = timedelta(seconds=1)


class RemoteOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a store; what is empty is left to the environment."""

    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = ""
    session_token: str = ""
    connect_timeout_secs: float = REMOTE_CONNECT_TIMEOUT_SECS
    request_timeout_secs: float = REMOTE_REQUEST_TIMEOUT_SECS
    retries: int = REMOTE_RETRIES

    def __repr__(self) -> str:
        return f"RemoteOptions(endpoint={self.endpoint!r}, region={self.region!r}, …)"

    def with_environment(self, environ: Mapping[str, str]) -> "RemoteOptions":
        """Fill in what is empty from AWS's variables; a key given here keeps its own token."""
        changes = {
            "endpoint": self.endpoint
            or environ.get("AWS_ENDPOINT_URL_S3", "")
            or environ.get("AWS_ENDPOINT_URL", ""),
            "region": self.region
            or environ.get("AWS_REGION", "")
            or environ.get("AWS_DEFAULT_REGION", ""),
        }
        if not self.access_key_id:
            changes |= {
                "access_key_id": environ.get("AWS_ACCESS_KEY_ID", ""),
                "secret_access_key": environ.get("AWS_SECRET_ACCESS_KEY", ""),
                "session_token": environ.get("AWS_SESSION_TOKEN", ""),
            }
        return msgspec.structs.replace(self, **changes)


def open_s3(bucket: str, prefix: str, options: RemoteOptions) -> RemoteBucket:
    """Open a bucket of S3, or of a store that speaks its protocol, or the part below `prefix`.

    Without keys in `options`, obstore looks for a role of the machine or container.
    """
    config: S3Config = {
        "region": options.region or _REGION_DEFAULT,
        "disable_bulk_delete": True,  # one key at a time; not every store has the bulk call
        "unsigned_payload": _is_whole_on_the_way(options.endpoint),
    }
    if options.endpoint:
        config["aws_endpoint_url_s3"] = options.endpoint
    credential: S3Credential = {
        "access_key_id": options.access_key_id,
        "secret_access_key": options.secret_access_key,
        "token": options.session_token or None,
        "expires_at": None,
    }
    # Through a provider, because a key handed over as configuration would be joined by whatever
    # session token the environment holds.
    provider = (lambda: credential) if options.access_key_id else None
    return _open(
        f"s3://{bucket}",
        prefix,
        lambda: S3Store(
            bucket,
            config=config,
            client_options=_client(options),
            retry_config=_retries(options),
            credential_provider=provider,
        ),
    )


def open_gcs(bucket: str, prefix: str, options: RemoteOptions) -> RemoteBucket:
    """Open a bucket of Google Cloud Storage; credentials come from the environment."""
    return _open(
        f"gs://{bucket}",
        prefix,
        lambda: GCSStore(
            bucket,
            config={"base_url": options.endpoint} if options.endpoint else {},
            client_options=_client(options),
            retry_config=_retries(options),
        ),
    )


def open_azure(container: str, prefix: str, options: RemoteOptions) -> RemoteBucket:
    """Open a container of Azure Blob Storage; account and key come from the environment."""
    return _open(
        f"az://{container}",
        prefix,
        lambda: AzureStore(
            container,
            config={"endpoint": options.endpoint} if options.endpoint else {},
            client_options=_client(options),
            retry_config=_retries(options),
        ),
    )


def _open(name: str, prefix: str, make: Callable[[], Store]) -> RemoteBucket:
    name = f"{name}/{prefix}" if prefix else name
    try:
        return RemoteBucket(name, make(), prefix)
    except (BaseError, ValueError, OSError):
        # The text of the cause may quote what it was given, credentials included.
        raise BucketRefused(
            name, "the store's settings are not usable: check endpoint, region and credentials"
        ) from None


def _client(options: RemoteOptions) -> "ClientConfig":
    return {
        "allow_http": urlsplit(options.endpoint).scheme == "http",
        "connect_timeout": timedelta(seconds=options.connect_timeout_secs),
        "timeout": timedelta(seconds=options.request_timeout_secs),
    }


def _retries(options: RemoteOptions) -> "RetryConfig":
    return {
        "max_retries": options.retries,
        "retry_timeout": timedelta(seconds=REMOTE_RETRY_SECS),
        "backoff": {"init_backoff": _BACKOFF_FIRST, "max_backoff": _BACKOFF_MAX, "base": 2},
    }


def _is_whole_on_the_way(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    return not endpoint or parts.scheme == "https" or parts.hostname in _LOOPBACK
