"""The key that a customer sends along with a request, and what it must be for a cipher.

It is on loan: nothing here shows it, and whoever has decoded it lets it go with the request.
"""

import base64
import binascii
from typing import Final

from bourn.errors import BadHeader
from bourn.limits import ENCRYPTION_KEY_BYTES
from bourn.model.config import Cipher


class CustomerKey:
    """The `s2-encryption-key` of a request, or its absence; looked at once a cipher asks for it."""

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def __repr__(self) -> str:
        return "CustomerKey()" if self._text is None else "CustomerKey(…)"

    def __reduce__(self) -> str:
        raise TypeError("a key is not written down")

    def decode(self, cipher: Cipher) -> bytes:
        """Return the 32 bytes of the key; BadHeader where it is missing or none."""
        if self._text is None:
            raise BadHeader(f"missing encryption key for stream cipher '{cipher}'")
        key = _from_base64(self._text)
        if key is None:
            raise BadHeader(f"invalid encryption key for stream cipher '{cipher}': invalid base64")
        if len(key) != ENCRYPTION_KEY_BYTES:
            raise BadHeader(
                f"invalid encryption key length for stream cipher '{cipher}': {len(key)}"
            )
        return key


def _from_base64(text: str) -> bytes | None:
    """Decode standard base64 with its padding; None for anything else, odd last bits included."""
    try:
        encoded = text.encode("ascii")
        key = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        return None
    return key if base64.b64encode(key) == encoded else None


NO_KEY: Final = CustomerKey(None)
