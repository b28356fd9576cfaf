"""Customers' keys: what is one, what is said where it is none, and that it is never shown."""

import base64
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import BadHeader
from bourn.model.config import Cipher
from bourn.model.keys import NO_KEY, CustomerKey

ZEROS = "A" * 43 + "="


@pytest.mark.parametrize("cipher", Cipher)
@given(key=st.binary(min_size=32, max_size=32))
def test_a_key_is_standard_base64_of_32_bytes(cipher: Cipher, key: bytes) -> None:
    assert CustomerKey(base64.b64encode(key).decode()).decode(cipher) == key


@pytest.mark.parametrize("cipher", Cipher)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "missing encryption key for stream cipher '{}'"),
        ("rot13", "invalid encryption key for stream cipher '{}': invalid base64"),
        (ZEROS[:-1], "invalid encryption key for stream cipher '{}': invalid base64"),
        ("_" * 43 + "=", "invalid encryption key for stream cipher '{}': invalid base64"),
        ("A" * 42 + "B=", "invalid encryption key for stream cipher '{}': invalid base64"),
        ("é" * 40, "invalid encryption key for stream cipher '{}': invalid base64"),
        ("AA A", "invalid encryption key for stream cipher '{}': invalid base64"),
        ("=", "invalid encryption key for stream cipher '{}': invalid base64"),
        ("AAAA", "invalid encryption key length for stream cipher '{}': 3"),
        ("A" * 40, "invalid encryption key length for stream cipher '{}': 30"),
        ("A" * 44, "invalid encryption key length for stream cipher '{}': 33"),
    ],
)
def test_what_is_no_key_is_named_by_the_cipher_that_asks_for_it(
    cipher: Cipher, text: str | None, message: str
) -> None:
    with pytest.raises(BadHeader) as refused:
        CustomerKey(text).decode(cipher)
    assert refused.value.message == message.format(cipher.value)


def test_a_key_is_never_shown() -> None:
    key = CustomerKey(ZEROS)
    assert {repr(key), str(key), f"{key}", f"{[key]}"[1:-1]} == {"CustomerKey(…)"}
    assert repr(NO_KEY) == "CustomerKey()"
    assert not hasattr(key, "__dict__")
    with pytest.raises(TypeError):
        pickle.dumps(key)


@given(st.text(max_size=44))
def test_no_error_repeats_what_was_sent(text: str) -> None:
    with pytest.raises(BadHeader) as refused:
        CustomerKey(text).decode(Cipher.AEGIS_256)
    allowed = "invalid encryption key length for stream cipher 'aegis-256': base64 0123456789"
    assert set(refused.value.message) <= set(allowed)
    assert refused.value.__cause__ is None
