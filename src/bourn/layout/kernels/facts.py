"""What the kernels and their callers say to each other: rows, sums, faults. Plain numbers.

A scan of an AppendInput leaves a row of `FACTS` words for every record, and `STATE` words of its
own. A fault is a negative result.
"""

from typing import Final

# A row: positions are offsets in the message.
RECORD_AT: Final = 0
RECORD_END: Final = 1
BODY_AT: Final = 2
BODY_BYTES: Final = 3
HEADER_COUNT: Final = 4
METERED: Final = 5
STAMP: Final = 6  # 0 where there is none
FLAGS: Final = 7
VALUE_AT: Final = 8  # of the last header: a command's op
VALUE_BYTES: Final = 9
FACTS: Final = 10

FLAG_STAMPED: Final = 1
FLAG_COMMAND: Final = 2
FLAG_WIDE: Final = 4
FLAG_EMPTY_NAME: Final = 8

# The state of a scan
AT: Final = 0  # in: where to begin; out: where it stopped
METERED_SUM: Final = 1
HEADER_SUM: Final = 2
STORED_SUM: Final = 3
STAMPED: Final = 4  # rows that carry a timestamp
COMMANDS: Final = 5  # rows that are commands
FLAWED: Final = 6  # the first row with an empty name or too large a size, or -1
MATCH_SET: Final = 7
MATCH: Final = 8
TOKEN_AT: Final = 9  # 0: none, for its tag stands before it
TOKEN_BYTES: Final = 10
STATE: Final = 11

# Faults of a message
CUT_SHORT: Final = -1
LONG_VARINT: Final = -2
BAD_TAG: Final = -3
BAD_WIRE_TYPE: Final = -4
BAD_GROUP: Final = -5
DEEP_GROUP: Final = -6
BAD_UTF8: Final = -7

MESSAGE_FAULTS: Final = {
    CUT_SHORT: "it ends inside of a field",
    LONG_VARINT: "a varint has too many bytes",
    BAD_TAG: "a tag is no field number",
    BAD_WIRE_TYPE: "a field has a wire type that is none",
    BAD_GROUP: "a group ends that is not open",
    DEEP_GROUP: "groups are nested too deeply",
    BAD_UTF8: "the fencing token is not UTF-8",
}

# Faults of a stored record: -(RECORD_FAULT_BASE * index + code)
RECORD_FAULT_BASE: Final = 16
BAD_COLUMNS: Final = 1
BAD_MAGIC: Final = 2
RECORD_CUT_SHORT: Final = 3
BAD_BODY_START: Final = 4
BAD_METERED: Final = 5
BAD_COMMAND: Final = 6
ENCRYPTED: Final = 7
CHANGED: Final = 8

RECORD_FAULTS: Final = {
    BAD_COLUMNS: "the columns do not fit the records",
    BAD_MAGIC: "unknown magic byte",
    RECORD_CUT_SHORT: "record is cut short",
    BAD_BODY_START: "the body starts elsewhere",
    BAD_METERED: "metered size is wrong",
    BAD_COMMAND: "unknown command",
    ENCRYPTED: "record is encrypted",
    CHANGED: "the payload has changed during the call",
}

# The stored form; `records.py` draws it.
TYPE_COMMAND: Final = 1
TYPE_ENVELOPE: Final = 2
TYPE_ENCRYPTED: Final = 3
MAGIC_WIDE: Final = 1 << 5
MAGIC_MAX: Final = 0x3F
OP_FENCE: Final = 1
OP_TRIM: Final = 2
FENCE_OP_BYTES: Final = 5
TRIM_OP_BYTES: Final = 4
TRIM_BODY_BYTES: Final = 8
FENCE_BODY_BYTES_MAX: Final = 36
RECORD_METERED_MAX: Final = 1 << 20
BYTE_MAX: Final = 0xFF
NARROW_MAX: Final = 0xFFFF
