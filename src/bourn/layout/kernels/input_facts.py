"""What the kernels that read appends in JSON and their callers say to each other. Plain numbers.

A scan leaves rows and a state as `facts.py` has them, with these differences: positions are those
of the text between quotes, sizes those of what it stands for, and RECORD_AT is behind the bracket
that opens the headers. Sizes in the text are noted beside them.
"""

from typing import Final

from bourn.layout.kernels.facts import RECORD_END

BODY_TEXT_BYTES: Final = RECORD_END  # of the body in the text; headers end by their count
NOT_SURE: Final = -1  # the text is for the readers that know it all

# Digits of base64, which a kernel takes four at a time: the number of a digit at the first, second,
# third or fourth place is an entry of the table, and four of them, joined, are three bytes, the
# first byte lowest.
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
NO_DIGIT: Final = 1 << 31
PLACE_BYTES: Final = 4 * 256  # of the table, for each place


def _entry(place: int, byte: int) -> int:
    value = _ALPHABET.find(byte)
    if value < 0:
        return NO_DIGIT
    three = (value << 18 - 6 * place).to_bytes(3, "big")
    return int.from_bytes(three, "little")


DIGITS: Final = b"".join(
    _entry(place, byte).to_bytes(4, "little") for place in range(4) for byte in range(256)
)
