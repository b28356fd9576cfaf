"""The ciphers of encrypted streams: other people's code behind one small port.

| algorithm | cipher | nonce | tag | by |
|---|---|---|---|---|
| 1 | AEGIS-256 (CFRG draft, 256-bit tag) | 32 bytes | 32 bytes | libsodium, in PyNaCl |
| 2 | AES-256-GCM (NIST SP 800-38D) | 12 bytes | 16 bytes | OpenSSL, in cryptography |

AEGIS is called through PyNaCl's compiled module and not through the functions around it, which
take ten times as long as the cipher itself; the specification's vectors in the tests hold that
use in place. Both keep the key for as long as the object lives, and never show it.
"""

from typing import Final, Protocol

import nacl.bindings  # it makes libsodium choose the instructions of this machine
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from nacl._sodium import ffi, lib  # type: ignore[import-not-found]  # compiled, no stubs

from bourn.errors import DecryptionFailed
from bourn.limits import ENCRYPTION_KEY_BYTES
from bourn.model.config import Cipher


class Aead(Protocol):
    """Authenticated encryption under one key. A nonce must never be used for two texts."""

    algorithm: int  # its number in stored records
    nonce_bytes: int
    tag_bytes: int

    def encrypt(self, nonce: bytes, text: bytes, associated_data: bytes) -> bytes | bytearray:
        """Return the ciphertext and, behind it, the tag."""
        ...

    def decrypt(self, nonce: bytes, sealed: bytes, associated_data: bytes) -> bytes | bytearray:
        """Return the text of ciphertext and tag; DecryptionFailed where they do not agree."""
        ...


class Aegis256:
    """AEGIS-256 with its 256-bit tag."""

    __slots__ = ("_key",)

    algorithm = 1
    nonce_bytes = 32
    tag_bytes = 32

    def __init__(self, key: bytes) -> None:
        if len(key) != ENCRYPTION_KEY_BYTES:
            raise ValueError("the key has a wrong length")
        self._key = key

    def encrypt(self, nonce: bytes, text: bytes, associated_data: bytes) -> bytearray:
        """Return the ciphertext and, behind it, the tag."""
        assert len(nonce) == self.nonce_bytes
        size = len(text)
        sealed = bytearray(size + self.tag_bytes)
        failed = lib.crypto_aead_aegis256_encrypt(
            ffi.from_buffer(sealed),
            ffi.NULL,
            text,
            size,
            associated_data,
            len(associated_data),
            ffi.NULL,
            nonce,
            self._key,
        )
        assert not failed, "encryption cannot fail"
        return sealed

    def decrypt(self, nonce: bytes, sealed: bytes, associated_data: bytes) -> bytearray:
        """Return the text of ciphertext and tag; DecryptionFailed where they do not agree."""
        assert len(nonce) == self.nonce_bytes
        size = len(sealed) - self.tag_bytes
        if size < 0:
            raise DecryptionFailed
        text = bytearray(size)
        failed = lib.crypto_aead_aegis256_decrypt(
            ffi.from_buffer(text),
            ffi.NULL,
            ffi.NULL,
            sealed,
            len(sealed),
            associated_data,
            len(associated_data),
            nonce,
            self._key,
        )
        if failed:
            raise DecryptionFailed
        return text


class Aes256Gcm:
    """AES-256-GCM with 96-bit nonces and the full tag."""

    __slots__ = ("_aead",)

    algorithm = 2
    nonce_bytes = 12
    tag_bytes = 16

    def __init__(self, key: bytes) -> None:
        if len(key) != ENCRYPTION_KEY_BYTES:
            raise ValueError("the key has a wrong length")
        self._aead = AESGCM(key)

    def encrypt(self, nonce: bytes, text: bytes, associated_data: bytes) -> bytes:
        """Return the ciphertext and, behind it, the tag."""
        assert len(nonce) == self.nonce_bytes
        return self._aead.encrypt(nonce, text, associated_data)

    def decrypt(self, nonce: bytes, sealed: bytes, associated_data: bytes) -> bytes:
        """Return the text of ciphertext and tag; DecryptionFailed where they do not agree."""
        assert len(nonce) == self.nonce_bytes
        try:
            return self._aead.decrypt(nonce, sealed, associated_data)
        except InvalidTag:
            raise DecryptionFailed from None


AEADS: Final[dict[Cipher, type[Aegis256 | Aes256Gcm]]] = {
    Cipher.AEGIS_256: Aegis256,
    Cipher.AES_256_GCM: Aes256Gcm,
}

assert Aegis256.tag_bytes == nacl.bindings.crypto_aead_aegis256_ABYTES
assert Aegis256.nonce_bytes == nacl.bindings.crypto_aead_aegis256_NPUBBYTES
