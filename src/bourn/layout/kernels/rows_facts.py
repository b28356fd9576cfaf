"""What the kernels of the history and their callers say to each other. Plain numbers."""

from typing import Final

from bourn.layout.kernels.facts import RECORD_FAULTS

# A row for every batch that becomes rows: where its payload lies, and how many records it has.
BATCH_AT: Final = 0
BATCH_BYTES: Final = 1
BATCH_COUNT: Final = 2
BATCH_WORDS: Final = 3

# What a scan of batches sums up
HEADER_SUM: Final = 0
NAME_SUM: Final = 1
VALUE_SUM: Final = 2
BODY_SUM: Final = 3
SUMS: Final = 4

# The kinds of records, as the column's dictionary numbers them
KIND_ENVELOPE: Final = 0
KIND_COMMAND: Final = 1
KIND_ENCRYPTED: Final = 2

# A row for every batch that rows become
GROUP_ROW: Final = 0  # the first
GROUP_COUNT: Final = 1
GROUP_METERED: Final = 2
GROUP_HEADERS: Final = 3  # for encrypted records, as many as there can be
GROUP_BYTES: Final = 4  # of the payload
GROUP_FLAGS: Final = 5
GROUP_WORDS: Final = 6

FLAG_COMMANDS: Final = 1
FLAG_STAMPS: Final = 2  # the timestamps differ

# A row for every page of a Parquet file; the sizes are those of what lies in the file
PAGE_LEAF: Final = 0  # which of the chunks that were asked for
PAGE_TYPE: Final = 1
PAGE_AT: Final = 2  # behind its header
PAGE_BYTES: Final = 3
PAGE_RAW_BYTES: Final = 4  # of all of it without compression
PAGE_COUNT: Final = 5  # of its values, those that are not there included
PAGE_ENCODING: Final = 6
PAGE_DEFINITION_BYTES: Final = 7
PAGE_REPETITION_BYTES: Final = 8
PAGE_IS_PACKED: Final = 9
PAGE_WORDS: Final = 10

PAGE_TYPE_DICTIONARY: Final = 2
PAGE_TYPE_DATA: Final = 3  # of version 2

PAGE_RAW_BYTES_MAX: Final = 1 << 28  # beyond any page of ours
FOREIGN: Final = -1  # a page is not as our writer makes it

# The associated bytes of encrypted records by algorithm: `sealed.py` draws them.
NONCE_BYTES_1: Final = 32
NONCE_BYTES_2: Final = 12

# Faults, beside those of stored records
NOT_NARROWEST: Final = 9
BAD_ROW: Final = 10
BAD_HEADERS: Final = 11
OUT_OF_ORDER: Final = 12

FAULTS: Final = {
    **RECORD_FAULTS,
    NOT_NARROWEST: "it is not in the form that writers choose",
    BAD_ROW: "the row is no record",
    BAD_HEADERS: "the headers are not those of its kind",
    OUT_OF_ORDER: "the sequence numbers do not ascend",
}
