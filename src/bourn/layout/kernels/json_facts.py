"""What the kernels of JSON and their callers say to each other. Plain numbers, and the words."""

from typing import Final

PART_BYTES: Final = 64  # eight numbers; `to_json.py` says which
NO_STAMPS: Final = 2**64 - 1

# The words of a batch, and where they lie in WORDS
_START: Final = b'{"records":['
_SEQ_NUM: Final = b'{"seq_num":'
_TIMESTAMP: Final = b',"timestamp":'
_HEADERS: Final = b',"headers":['
_BODY: Final = b',"body":"'
_NO_NAME: Final = b'["",'
_FENCE: Final = b"fence"
_TRIM: Final = b"trim"
_ALPHABET: Final = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
WORDS: Final = (
    _ALPHABET + _START + _SEQ_NUM + _TIMESTAMP + _HEADERS + _BODY + _NO_NAME + _FENCE + _TRIM
)

START_AT: Final = len(_ALPHABET)  # which comes first
START_BYTES: Final = len(_START)
SEQ_NUM_AT: Final = START_AT + START_BYTES
SEQ_NUM_BYTES: Final = len(_SEQ_NUM)
TIMESTAMP_AT: Final = SEQ_NUM_AT + SEQ_NUM_BYTES
TIMESTAMP_BYTES: Final = len(_TIMESTAMP)
HEADERS_AT: Final = TIMESTAMP_AT + TIMESTAMP_BYTES
HEADERS_BYTES: Final = len(_HEADERS)
BODY_AT: Final = HEADERS_AT + HEADERS_BYTES
BODY_BYTES: Final = len(_BODY)
NO_NAME_AT: Final = BODY_AT + BODY_BYTES  # of a command's header
NO_NAME_BYTES: Final = len(_NO_NAME)
FENCE_AT: Final = NO_NAME_AT + NO_NAME_BYTES
TRIM_AT: Final = FENCE_AT + len(_FENCE)

# A record takes at most so much besides its data: the words, two numbers, `"` and `},`.
RECORD_BYTES_MAX: Final = SEQ_NUM_BYTES + TIMESTAMP_BYTES + HEADERS_BYTES + BODY_BYTES + 40 + 4
# A byte of data becomes six at most, `\u0000`; sizes of names and values make up for what is
# around these.
GROWTH_MAX: Final = 6
