"""Every bound of the system, in one place; the relations between bounds are asserted below.

The first block is the contract with clients; the rest bounds our own memory and time.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
U64_MAX: Final = 2**64 - 1

# Records and batches
RECORD_METERED_BYTES_MIN: Final = 8
RECORD_METERED_BYTES_MAX: Final = MIB
BATCH_RECORDS_MAX: Final = 1000
BATCH_METERED_BYTES_MAX: Final = MIB
READ_BATCH_RECORDS_MAX: Final = 1000
READ_BATCH_METERED_BYTES_MAX: Final = MIB
FENCING_TOKEN_BYTES_MAX: Final = 36
TRIM_BODY_BYTES: Final = 8
AES_GCM_SEQ_NUM_MAX: Final = 2**32 - 1

# Names
BASIN_NAME_BYTES_MIN: Final = 8
BASIN_NAME_BYTES_MAX: Final = 48
STREAM_NAME_BYTES_MAX: Final = 512
ACCESS_TOKEN_ID_BYTES_MAX: Final = 96
LOCATION_NAME_BYTES_MAX: Final = 64
STORAGE_CLASS_BYTES_MAX: Final = 64
REQUEST_TOKEN_BYTES_MAX: Final = 36
LIST_LIMIT_MAX: Final = 1000

# Wire
FRAME_LENGTH_MAX: Final = 2 * MIB  # flag byte + payload
FRAME_PAYLOAD_BYTES_MAX: Final = FRAME_LENGTH_MAX - 1
FRAME_COMPRESSION_THRESHOLD_BYTES: Final = 1024
UNARY_BODY_BYTES_MAX: Final = 2 * MIB
ZSTD_WINDOW_BYTES_MAX: Final = 8 * MIB  # what RFC 9659 allows an HTTP sender to ask of us
DECOMPRESSION_CHUNK_BYTES: Final = 128 * KIB
READ_WAIT_SECS_MAX: Final = 60
ENCRYPTION_KEY_CHARS_MAX: Final = 44  # standard base64 of 32 bytes
PORT_MAX: Final = 65_535

# Defaults of stream configs
RETENTION_AGE_SECS_DEFAULT: Final = 604_800

# The log
COMMIT_SPLIT_BYTES: Final = 4 * MIB  # an open commit of this size is flushed at once
COMMIT_SPLIT_BYTES_MAX: Final = 16 * MIB
COMMIT_BYTES_MAX: Final = 64 * MIB  # a decoder refuses a commit object above this
COMMIT_ENTRIES_MAX: Final = 1 << 20
APPEND_INFLIGHT_BYTES: Final = 128 * MIB
APPEND_INFLIGHT_BYTES_MIN: Final = MIB
COMMITS_IN_FLIGHT_LOCAL: Final = 8
COMMITS_IN_FLIGHT_REMOTE: Final = 32
COMMITS_IN_FLIGHT_MAX: Final = 256

# Memory
TAIL_CACHE_BYTES: Final = 256 * MIB
READ_CACHE_BYTES: Final = 64 * MIB
ENCODED_CACHE_BYTES: Final = 64 * MIB  # encoded batches shared by the readers of a stream
READ_AHEAD_BYTES: Final = 8 * MIB
READ_AHEAD_REQUESTS: Final = 16
CONFIG_POOL_ENTRIES_MAX: Final = 4096  # distinct configs that stream rows share

# Housekeeping

# Buckets
OBJECT_KEY_BYTES_MAX: Final = 768
OBJECT_KEY_SEGMENT_BYTES_MAX: Final = 255  # a file's name
BUCKET_PREFIX_BYTES_MAX: Final = 255
LIST_PAGE_KEYS: Final = 1000
LOCAL_THREADS: Final = 8  # for writing, and as many for reading
LOCAL_THREADS_MAX: Final = 64
LOCAL_JOBS_MAX: Final = 256  # handed to the threads at once; more wait in line
LOCAL_DIRECTORIES_OPEN_MAX: Final = 128
REMOTE_CONNECT_TIMEOUT_SECS: Final = 5.0
REMOTE_REQUEST_TIMEOUT_SECS: Final = 30.0
REMOTE_RETRIES: Final = 2
REMOTE_RETRY_SECS: Final = 5.0

assert BATCH_METERED_BYTES_MAX <= READ_BATCH_METERED_BYTES_MAX, "a full batch must be readable"
assert BATCH_RECORDS_MAX <= READ_BATCH_RECORDS_MAX, "a full batch must be readable"
assert RECORD_METERED_BYTES_MAX <= BATCH_METERED_BYTES_MAX, "a full record must fit a batch"
assert 2 * BATCH_METERED_BYTES_MAX <= FRAME_LENGTH_MAX, "a full batch of bodies must fit a frame"
assert COMMIT_SPLIT_BYTES <= COMMIT_SPLIT_BYTES_MAX
assert 2 * (COMMIT_SPLIT_BYTES_MAX + 4 * BATCH_METERED_BYTES_MAX) < COMMIT_BYTES_MAX
assert APPEND_INFLIGHT_BYTES_MIN >= BATCH_METERED_BYTES_MAX, "a full batch must be admissible"
assert BUCKET_PREFIX_BYTES_MAX + 1 + OBJECT_KEY_BYTES_MAX <= KIB, "the longest key that S3 takes"
