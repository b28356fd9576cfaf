"""The ciphers against the vectors of their specifications, through our own use of the libraries."""

import pytest

from bourn.errors import DecryptionFailed
from bourn.layout.ciphers import AEADS, Aead, Aegis256, Aes256Gcm
from bourn.limits import ENCRYPTION_KEY_BYTES
from bourn.model.config import Cipher

AEGIS_KEY = "1001" + "00" * 30
AEGIS_NONCE = "100002" + "00" * 29
GCM_KEY = "feffe9928665731c6d6a8f9467308308" * 2
GCM_NONCE = "cafebabefacedbaddecaf888"
GCM_TEXT = (
    "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
    "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b391aafd255"
)
GCM_CIPHERTEXT = (
    "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
    "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662898015ad"
)

# key, nonce, associated data, text, ciphertext, tag, and of AEGIS the short tag that is not used
Vector = tuple[type[Aegis256 | Aes256Gcm], tuple[str, str, str, str], str, str, str | None]
VECTORS: dict[str, Vector] = {
    "aegis-1": (
        Aegis256,
        (AEGIS_KEY, AEGIS_NONCE, "", "00" * 16),
        "754fc3d8c973246dcc6d741412a4b236",
        "1181a1d18091082bf0266f66297d167d2e68b845f61a3b0527d31fc7b7b89f13",
        "3fe91994768b332ed7f570a19ec5896e",
    ),
    "aegis-2": (
        Aegis256,
        (AEGIS_KEY, AEGIS_NONCE, "", ""),
        "",
        "6a348c930adbd654896e1666aad67de989ea75ebaa2b82fb588977b1ffec864a",
        "e3def978a0f054afd1e761d7553afba3",
    ),
    "aegis-3": (
        Aegis256,
        (AEGIS_KEY, AEGIS_NONCE, "0001020304050607", bytes(range(32)).hex()),
        "f373079ed84b2709faee373584585d60accd191db310ef5d8b11833df9dec711",
        "b7d28d0c3c0ebd409fd22b44160503073a547412da0854bfb9723020dab8da1a",
        "8d86f91ee606e9ff26a01b64ccbdd91d",
    ),
    "aegis-4": (
        Aegis256,
        (AEGIS_KEY, AEGIS_NONCE, "0001020304050607", bytes(range(14)).hex()),
        "f373079ed84b2709faee37358458",
        "8c1cc703c81281bee3f6d9966e14948b4a175b2efbdc31e61a98b4465235c2d9",
        "c60b9c2d33ceb058f96e6dd03c215652",
    ),
    "gcm-13": (
        Aes256Gcm,
        ("00" * 32, "00" * 12, "", ""),
        "",
        "530f8afbc74536b9a963b4f1c4cb738b",
        None,
    ),
    "gcm-14": (
        Aes256Gcm,
        ("00" * 32, "00" * 12, "", "00" * 16),
        "cea7403d4d606b6e074ec5d3baf39d18",
        "d0d1c8a799996bf0265b98b5d48ab919",
        None,
    ),
    "gcm-15": (
        Aes256Gcm,
        (GCM_KEY, GCM_NONCE, "", GCM_TEXT),
        GCM_CIPHERTEXT,
        "b094dac5d93471bdec1a502270e3cc6c",
        None,
    ),
    "gcm-16": (
        Aes256Gcm,
        (GCM_KEY, GCM_NONCE, "feedfacedeadbeeffeedfacedeadbeefabaddad2", GCM_TEXT[:120]),
        GCM_CIPHERTEXT[:120],
        "76fc6ece0f4e1768cddf8853bb2d551b",
        None,
    ),
}


def parts(name: str) -> tuple[Aead, bytes, bytes, bytes, bytes]:
    """The cipher, nonce, associated data, text, and what it must become."""
    kind, given, ciphertext, tag, _ = VECTORS[name]
    key, nonce, associated, text = map(bytes.fromhex, given)
    return kind(key), nonce, associated, text, bytes.fromhex(ciphertext + tag)


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_of_the_specification_comes_out_and_goes_back(name: str) -> None:
    aead, nonce, associated, text, sealed = parts(name)
    assert bytes(aead.encrypt(nonce, text, associated)) == sealed
    assert bytes(aead.decrypt(nonce, sealed, associated)) == text


@pytest.mark.parametrize("name", [name for name in VECTORS if name.startswith("aegis")])
def test_the_long_tag_of_aegis_folds_into_the_short_one(name: str) -> None:
    *_, tag, short = VECTORS[name]
    assert short is not None
    assert int(tag[:32], 16) ^ int(tag[32:], 16) == int(short, 16)


@pytest.mark.parametrize("name", VECTORS)
def test_nothing_opens_once_a_single_bit_is_another(name: str) -> None:
    aead, nonce, associated, _, sealed = parts(name)
    for at in range(len(sealed)):
        with pytest.raises(DecryptionFailed):
            aead.decrypt(nonce, flipped(sealed, at), associated)
    for at in range(len(nonce)):
        with pytest.raises(DecryptionFailed):
            aead.decrypt(flipped(nonce, at), sealed, associated)
    with pytest.raises(DecryptionFailed):
        aead.decrypt(nonce, sealed, associated + b"\0")
    for size in range(len(sealed)):
        with pytest.raises(DecryptionFailed):
            aead.decrypt(nonce, sealed[:size], associated)


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


@pytest.mark.parametrize("cipher", Cipher)
def test_every_cipher_has_its_size_of_key_and_shows_none(cipher: Cipher) -> None:
    key = b"k" * ENCRYPTION_KEY_BYTES
    assert "kkk" not in repr(AEADS[cipher](key))
    for wrong in (b"", key[1:], key + b"k"):
        with pytest.raises(ValueError, match="wrong length"):
            AEADS[cipher](wrong)
    with pytest.raises(AssertionError):
        AEADS[cipher](key).encrypt(b"short", b"", b"")
    with pytest.raises(AssertionError):
        AEADS[cipher](key).decrypt(b"short", bytes(64), b"")


def test_every_algorithm_has_its_own_number() -> None:
    assert {cipher.value: kind.algorithm for cipher, kind in AEADS.items()} == {
        "aegis-256": 1,
        "aes-256-gcm": 2,
    }
