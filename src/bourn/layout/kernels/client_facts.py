"""What the kernels of the client and their callers say to each other. Plain numbers."""

from typing import Final

from bourn.layout.kernels.facts import MESSAGE_FAULTS

# The state of a reader over many messages. What is wanted:
FROM_SET: Final = 0  # whether the next sequence number is known
FROM: Final = 1  # the next sequence number
END_SET: Final = 2
END: Final = 3  # the first sequence number that is not wanted
# What was found, in all messages since the sums were last set to 0:
ROWS: Final = 4
HEADER_SUM: Final = 5
NAME_SUM: Final = 6
VALUE_SUM: Final = 7
BODY_SUM: Final = 8
METERED_SUM: Final = 9
# What was found, ever:
IS_PAST: Final = 10  # a record at or behind the end was seen
GAP_SET: Final = 11
GAP_FROM: Final = 12  # the first sequence numbers that are missing
GAP_END: Final = 13
TAIL_SET: Final = 14
TAIL_SEQ_NUM: Final = 15
TAIL_STAMP: Final = 16
READ_WORDS: Final = 17

FIRST_SUM: Final = ROWS
LAST_SUM: Final = METERED_SUM

# Which columns are filled
WANTS_HEADERS: Final = 1
WANTS_BODY: Final = 2
WANTS_METERED: Final = 4

# A fault of a reader beside those of messages
NOT_ASCENDING: Final = -8
READ_FAULTS: Final = {**MESSAGE_FAULTS, NOT_ASCENDING: "the sequence numbers do not ascend"}

# A row for every message that rows become
INPUT_ROW: Final = 0  # the first
INPUT_COUNT: Final = 1
INPUT_METERED: Final = 2
INPUT_BYTES: Final = 3
INPUT_WORDS: Final = 4

# Faults of rows: -(ROW_FAULT_BASE * row + code)
ROW_FAULT_BASE: Final = 4
ROW_BROKEN: Final = 1
ROW_HEAVY: Final = 2
ROW_LONG: Final = 3
ROW_FAULTS: Final = {
    ROW_BROKEN: "its columns point outside of their data",
    ROW_HEAVY: "record must have metered size less than 1 MiB",
    ROW_LONG: "with so many headers it does not fit a frame",
}
