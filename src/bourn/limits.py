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
HEADER_METERED_BYTES_MIN: Final = 3  # 2, and a name of one byte: only commands have none

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
ENCRYPTION_KEY_BYTES: Final = 32
ENCRYPTION_KEY_CHARS_MAX: Final = 44  # standard base64 of these
PORT_MAX: Final = 65_535

# HTTP
STREAM_WINDOW_BYTES: Final = 4 * MIB
CONNECTION_WINDOW_BYTES: Final = 16 * MIB
HEAD_BYTES_MAX: Final = 64 * KIB
HEADERS_MAX: Final = 100
CONCURRENT_STREAMS_MAX: Final = 1000
SEND_BUFFER_BYTES_MAX: Final = 2 * MIB
HEAD_READ_SECS: Final = 30.0  # also how long an idle HTTP/1.1 connection is kept
LINGER_SECS: Final = 1.0  # a client that still sends behind its answer is heard out so long
INPUT_TURN_SECS: Final = 0.002  # that one piece of HTTP/2 input may take
INPUT_PIECE_BYTES_MIN: Final = KIB
GOAWAY_LAG_SECS: Final = 0.05  # for a client to read what was sent before it
LINGER_BYTES_MAX: Final = 8 * MIB
BACKLOG: Final = 4096
JSON_INLINE_BYTES_MAX: Final = 64 * KIB  # a larger text is read, and written, beside the loop
JSON_DUMP_BYTES: Final = 64 * KIB  # written at once; other threads may run between two
BACKLOG_PIECE_BYTES_MIN: Final = 16 * KIB  # of an answer; smaller ones are not worth counting
BACKLOG_BYTES_MAX: Final = 256 * MIB  # of answers that clients do not take, over all of them
BACKLOG_STALL_SECS: Final = 1.0  # nobody is cut off sooner
CONTROL_BODY_BYTES_MAX: Final = 64 * KIB  # names and configs: none of them can be so large
BODY_READ_SECS: Final = 60.0  # for the whole body of a request that is answered once

# Access
ACCESS_TOKENS_MAX: Final = 100_000
EXPIRED_TOKENS_DROPPED_MAX: Final = 8  # with each one that is issued: they cannot pile up
ROOT_TOKEN_CHARS_MIN: Final = 16
ROOT_TOKEN_CHARS_MAX: Final = 512
PRINCIPALS_KEPT_MAX: Final = 10_000  # tokens whose grants are kept worked out
TOKEN_CHECK_SECS: Final = 20.0  # how often a token with open sessions is looked at again
TOKEN_ENDED_GRACE_SECS: Final = 20.0  # for what is being sent when a token ends
SESSIONS_OUTLIVE_TOKENS_SECS_MAX: Final = 60.0
AUDIT_REFUSALS_MAX: Final = 100  # written in each window; the rest is counted
AUDIT_WINDOW_SECS: Final = 10.0

# Limits of traffic, where they are set
LIMIT_HOLDERS_MAX: Final = 16_384  # basins, and as many tokens, of which is known what they spent
LIMIT_APPEND_BYTES_MIN: Final = 64 * KIB  # a second; the wait for a full batch must stay bearable
SESSION_OPEN_WAIT_SECS_MAX: Final = 5.0  # for the head of a session; clients give up much later
SESSION_RETRY_MS: Final = 1000  # nobody knows when a session will end

# Defaults of stream configs
RETENTION_AGE_SECS_DEFAULT: Final = 604_800

# The log
COMMIT_SPLIT_BYTES: Final = 4 * MIB  # an open commit of this size is flushed at once
COMMIT_SPLIT_BYTES_MAX: Final = 16 * MIB
COMMIT_BYTES_MAX: Final = 64 * MIB  # a decoder refuses a commit object above this
COMMIT_ENTRIES_MAX: Final = 1 << 20
STORED_RECORD_OVERHEAD_BYTES: Final = 16 + 12  # columns and timestamp; prefix, count, 4 B each
SEALED_RECORD_OVERHEAD_BYTES_MAX: Final = 69  # a second prefix, algorithm, nonce and tag
APPEND_INFLIGHT_BYTES: Final = 128 * MIB
APPEND_INFLIGHT_BYTES_MIN: Final = MIB
COMMITS_IN_FLIGHT_LOCAL: Final = 8
COMMITS_IN_FLIGHT_REMOTE: Final = 32
COMMITS_IN_FLIGHT_MAX: Final = 256

# The history
HISTORY_CHUNK_BYTES: Final = 16 * MIB  # stored records that become columns at once
HISTORY_ROW_GROUP_BYTES_MIN: Final = 512 * KIB  # from here on, a row group ends with its stream
HISTORY_ROW_GROUP_BYTES_MAX: Final = MIB  # beyond: only where one record is larger
HISTORY_ROW_BYTES: Final = 24  # what a row counts for beside its metered size
HISTORY_ARRIVAL_MS_MAX: Final = (2**63 - 1) // 1000  # the table counts microseconds

# Memory
TAIL_CACHE_BYTES: Final = 256 * MIB
READ_CACHE_BYTES: Final = 64 * MIB
ENCODED_CACHE_BYTES: Final = 64 * MIB  # encoded batches shared by the readers of a stream
SHARED_BODIES_MAX: Final = 64  # batches as JSON, shared by the SSE followers of a stream
SHARED_BODY_BYTES_MAX: Final = 64 * KIB
READ_AHEAD_BYTES: Final = 8 * MIB
READ_AHEAD_REQUESTS: Final = 16
CONFIG_POOL_ENTRIES_MAX: Final = 4096  # distinct configs that stream rows share

# Usage metrics: some 50 MB in memory with all caps reached, and 20 MB in a snapshot
USAGE_WINDOW_SECS_MAX: Final = 30 * 86_400  # of one request
USAGE_WINDOW_AHEAD_SECS_MAX: Final = 60
USAGE_MINUTES_KEPT: Final = 2 * 1440  # older ones become hours,
USAGE_HOURS_KEPT: Final = 31 * 24  # these become days,
USAGE_DAYS_KEPT: Final = 400  # and those are forgotten
USAGE_SERIES_MAX: Final = 32_768  # beyond: the series that were idle the longest are forgotten
USAGE_POINTS_MAX: Final = 1_000_000  # beyond: resolution is given up, oldest first, totals last
USAGE_GAUGE_POINTS_MAX: Final = 250_000  # of basins, and as many of streams; as for series
USAGE_CLASSES_MAX: Final = 16  # storage classes of a basin that are told apart; the rest is "other"
USAGE_PENDING_MAX: Final = 20_000  # counts that wait for a flush; beyond: minutes become one
USAGE_LINES_MAX: Final = 2_000  # in one catalog change
USAGE_STREAMS_CHANGED_MAX: Final = 10_000  # whose sizes wait for a flush; others wait for a change
USAGE_STREAMS_FLUSHED_MAX: Final = 500  # gauges of streams in one flush; the others wait

# The pipeline
TIER_RUN_BYTES: Final = 32 * MIB  # of log for one task; it holds about four times that in memory
TIER_RUN_BYTES_MIN: Final = 4 * MIB  # where there is less of it, fewer tasks
TIER_ROUND_BYTES: Final = 1024 * MIB  # of log in one version of the table
TIER_ROUND_COMMITS: Final = 1 << 16
TIER_FETCHES: Final = 8  # commits that a task fetches at once
CATALOG_FETCHES: Final = 32  # beginnings of commits that the driver fetches at once
PIPELINE_REPORTS_KEPT: Final = 100
PIPELINE_LOG_TAIL_BYTES: Final = 64 * KIB  # of Spark's own log, where it fails

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
assert (
    3 * BATCH_METERED_BYTES_MAX  # a header of 3 metered bytes takes at most 9
    + BATCH_RECORDS_MAX * (STORED_RECORD_OVERHEAD_BYTES + SEALED_RECORD_OVERHEAD_BYTES_MAX)
    < 4 * BATCH_METERED_BYTES_MAX
), "the allowance for a batch above, encrypted or not"
assert ENCRYPTION_KEY_CHARS_MAX == 4 * -(-ENCRYPTION_KEY_BYTES // 3)
assert APPEND_INFLIGHT_BYTES_MIN >= BATCH_METERED_BYTES_MAX, "a full batch must be admissible"
assert BUCKET_PREFIX_BYTES_MAX + 1 + OBJECT_KEY_BYTES_MAX <= KIB, "the longest key that S3 takes"
assert 2 * USAGE_MINUTES_KEPT < USAGE_HOURS_KEPT * 60, "what minutes become must be kept as hours"
assert USAGE_WINDOW_SECS_MAX <= USAGE_HOURS_KEPT * 3600, "a full window must be kept as hours"
assert TOKEN_CHECK_SECS + TOKEN_ENDED_GRACE_SECS < SESSIONS_OUTLIVE_TOKENS_SECS_MAX
