"""Where a client goes and how: from what is given, and the S2_* variables for what is not.

S2_ACCESS_TOKEN       the token
S2_ENCRYPTION_KEY     the key of encrypted streams, base64
S2_SSL_NO_VERIFY      true: any certificate will do
and those of `model.endpoint`
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Self

from bourn.client.link import NO_VERIFY_VARIABLE
from bourn.client.retries import Retries
from bourn.model.endpoint import Endpoint, account_endpoint, basin_endpoint
from bourn.wire.compression import Compression

TOKEN_VARIABLE: Final = "S2_ACCESS_TOKEN"  # noqa: S105  its name, not its value
KEY_VARIABLE: Final = "S2_ENCRYPTION_KEY"
_TRUE: Final = frozenset({"1", "true", "yes"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Where and how: can be pickled, and shows neither token nor key."""

    account: Endpoint
    streams: Endpoint
    basin: str
    token: str = field(default="", repr=False)
    encryption_key: str = field(default="", repr=False)
    is_verified: bool = True
    compression: Compression = Compression.NONE
    retries: Retries = Retries()  # noqa: RUF009  a frozen value

    @classmethod
    def of(
        cls,
        basin: str,
        endpoint: str | None = None,
        *,
        token: str | None = None,
        encryption_key: str | None = None,
        compression: Compression = Compression.NONE,
        retries: Retries | None = None,
        environ: Mapping[str, str] | None = None,
        origin: str = "endpoint",
    ) -> Self:
        """Settings from what is given, and the S2_* variables for what is not.

        Raises BadAddress, which names `origin` where it was the given endpoint that is bad.
        """
        known = os.environ if environ is None else environ
        return cls(
            account_endpoint(endpoint, known, origin),
            basin_endpoint(endpoint, known, basin, origin),
            basin,
            token if token is not None else known.get(TOKEN_VARIABLE, "").strip(),
            encryption_key if encryption_key is not None else known.get(KEY_VARIABLE, "").strip(),
            known.get(NO_VERIFY_VARIABLE, "").lower() not in _TRUE,
            compression,
            retries or Retries(),
        )
