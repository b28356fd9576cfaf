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
CONDITIONS_BYTES_MAX: Final = 64  # of an append: a number, and a token with its length
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
INPUT_HEAVY_SECS: Final = 0.001  # who has cost more takes turns with others of that kind
INPUT_PIECE_BYTES_MIN: Final = KIB
INPUT_BUFFERED_BYTES_MAX: Final = 256 * KIB  # of HTTP/2 input; behind that, nothing is received
INPUT_REQUESTS_MAX: Final = 16  # that one piece of HTTP/2 input should begin
GOAWAY_LAG_SECS: Final = 0.05  # for a client to read what was sent before it
GOAWAY_ACK_SECS: Final = 1.0  # for a client that has nothing under way to confirm it
LINGER_BYTES_MAX: Final = 8 * MIB
BACKLOG: Final = 4096
ACCEPTED_MAX: Final = 32  # connections taken in by one turn of the loop
ACCEPTED_DEAD_MAX: Final = 512  # and those that their clients had reset before
ACCEPT_PAUSE_SECS: Final = 1.0  # when there is no file left for another one
QUICK_HEAD_BYTES_MAX: Final = 2 * KIB  # of a request that goes the quick way
QUICK_BODY_BYTES_MAX: Final = 512 * KIB  # a second or two, then its time runs the ordinary way
QUICK_HELD_BYTES_MAX: Final = 4 * MIB  # of bodies half sent on one connection over HTTP/2
QUICK_CONFIG_BYTES_MAX: Final = KIB  # the body of a PUT; whole configs take a quarter of it
QUICK_AHEAD_BYTES_MAX: Final = 64 * KIB  # of requests behind one that is being answered
QUICK_JOINED_BYTES_MAX: Final = 16 * KIB  # an answer up to here is one write with its head
QUICK_HEADS_KEPT: Final = 8  # of a connection
INSTANT_MINUTES_KEPT: Final = 1024  # of times that were written, as far as the minute
QUICK_QUERIES_KEPT: Final = 256  # of reads, of all connections
LANES_MAX: Final = 8192  # connections that a thread of their own receives for
LANE_BYTES: Final = 8 * KIB  # that it receives at once
LANE_ANSWER_BYTES_MAX: Final = KIB  # larger ones are the transport's, which knows who reads
LANES_FROM: Final = 24  # connections on the quick way; fewer are served sooner without a thread
QUICK_STARTS_KEPT: Final = 256  # of answers over HTTP/2, of all connections
QUICK_TURN_SECS: Final = 0.004  # one piece of HTTP/2 input; what it holds beyond that gets tasks
QUICK_IDLE_SECS: Final = 1.0  # a connection at rest goes the ordinary way, where its time runs
WAY_BACK_WORTH: Final = 8  # requests on the quick way, before a connection had to leave it
WAY_BACK_SKIPS_MAX: Final = 63
ATTENTION_TURNS: Final = 128  # of the loop behind an answer: a client wakes and asks again in less
ATTENTION_SKIPS_MAX: Final = 63
JSON_INLINE_BYTES_MAX: Final = 64 * KIB  # a larger text is read beside the loop
JSON_ORDINARY_INLINE_BYTES_MAX: Final = 512 * KIB  # unless nearly all of it are plain bytes
JSON_PLAIN_BYTES_MAX: Final = 4 * KIB  # of one record; kernels read larger ones faster
JSON_TINY_BYTES_MAX: Final = 256  # an object or two cost less than calls of kernels
JSON_WRITTEN_INLINE_BYTES_MAX: Final = 256 * KIB  # metered: half a millisecond, 1 at worst
JSON_DEPTH_MAX: Final = 1024
JSON_VALUES_AT_ONCE_MAX: Final = 40_000  # made objects of in one call, which holds the interpreter
JSON_PIECE_BYTES: Final = 64 * KIB  # of an array that has more
SEND_PIECE_BYTES: Final = 512 * KIB  # of an answer, handed to the library at once
BACKLOG_PIECE_BYTES_MIN: Final = 16 * KIB  # of an answer; smaller ones are not worth counting
LIVE_LAG_BYTES_MAX: Final = 256 * KIB  # metered; behind that, a live follower is let catch up
LIVE_LOST_BYTES: Final = 64 * MIB  # who is so far behind is not at the tail any more
LIVE_BYTES_PER_S_MIN: Final = 8 * MIB  # who takes less is not waited for
LIVE_BATCH_SECS_MIN: Final = 0.01  # that a small batch may take all the same
LIVE_WAIT_SECS_MIN: Final = 0.005  # a session that may not wait so long for them goes on
LIVE_WAIT_SECS_MAX: Final = 0.1  # at once, and never more than half of the time
PUSHED_BYTES_MAX: Final = 8 * KIB  # metered, of a batch that followers are sent without a wait
BACKLOG_BYTES_MAX: Final = 256 * MIB  # of answers that clients do not take, over all of them
BACKLOG_STALL_SECS: Final = 1.0  # nobody is cut off sooner, below twice that
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
HISTORY_ROW_GROUP_BYTES_SHARED_MAX: Final = MIB  # of more than one stream
HISTORY_ROW_GROUP_BYTES_MAX: Final = 2 * MIB  # of one; beyond: only where one record is larger
HISTORY_ROW_BYTES: Final = 24  # what a row counts for beside its metered size
HISTORY_SPANS_KEPT: Final = 1 << 16  # a stream's places in a segment; some 200 bytes each
HISTORY_STRETCHES_KEPT: Final = 256  # blocks that readers look at, as objects
HISTORY_POLL_SECS_LOCAL: Final = 1.0
HISTORY_POLL_SECS_REMOTE: Final = 5.0
HISTORY_COUNT_SECS: Final = 60.0  # from one count of what the table holds of each basin to the next
HISTORY_GROUPS_BYTES: Final = 16 * MIB  # decoded row groups that small streams share
DECODED_INLINE_BYTES_MAX: Final = 16 * KIB  # a hop to a thread costs more than decoding these
HISTORY_INDEX_FETCHES: Final = 8  # sidecars that are fetched and decoded at once
HISTORY_ARRIVAL_MS_MAX: Final = (2**63 - 1) // 1000  # the table counts microseconds

# Memory
TAIL_CACHE_LOCAL_BYTES: Final = 96 * MIB  # what is not in it is in the page cache, as a rule
TAIL_CACHE_REMOTE_BYTES: Final = 256 * MIB  # where a miss is a request, which waits and costs
READ_CACHE_BYTES: Final = 32 * MIB
ENCODED_CACHE_BYTES: Final = 32 * MIB  # encoded batches shared by the readers of a stream
SHARED_BODIES_MAX: Final = 64  # batches as JSON, shared by the SSE followers of a stream
SHARED_BODY_BYTES_MAX: Final = 64 * KIB
STREAMS_IN_USE_MAX: Final = 100_000  # as objects of some 1.5 KB; above it, who is idle goes
STREAM_REST_SECS: Final = 60  # who was not written to for so long need not be an object
SNAPSHOT_RUNS_AT_ONCE_BYTES: Final = KIB  # of a stream: longer indexes are copied by and by,
SNAPSHOT_RUNS_PIECE_BYTES: Final = 256 * KIB  # so much by one turn of the loop: half a millisecond
SNAPSHOT_PAUSE_FACTOR: Final = 20  # of what the last one took, where many streams are at work
ANSWERS_KEPT: Final = 64  # of reads, given again as long as they hold
ANSWER_BYTES_KEPT_MAX: Final = 64 * KIB
CATALOG_ANSWERS_KEPT: Final = 256  # lists and configs, given again until the catalog changes
CATALOG_ANSWERS_BYTES: Final = 4 * MIB  # of them, with the requests that they answer
CATALOG_ANSWER_BYTES_KEPT_MAX: Final = 256 * KIB
READ_AHEAD_BYTES: Final = 8 * MIB
READ_AHEAD_REQUESTS: Final = 16
READ_AHEAD_REMOTE: Final = 2  # times as much where every request waits for a network
READ_TOGETHER_BYTES_MAX: Final = 16 * KIB  # of a run: smaller neighbours come by one request,
READ_TOGETHER_RUNS: Final = 64  # so many of them
READ_JOINED_RUNS_MIN: Final = 4  # from so many on, small neighbours at hand are joined
READ_NEAR_RUNS_MAX: Final = 64  # of these, read from the page cache in one turn: half a millisecond
READ_NOW_BYTES_MAX: Final = 512 * KIB  # of runs, by a read that waits for nothing: 0.3 ms
READ_NOW_PART_BYTES: Final = 16 * KIB  # what each of them counts for besides
READ_TURN_PARTS: Final = 32  # gathered by one turn of the loop: a millisecond
READ_AHEAD_PARTS: Final = 4  # taken of what was read ahead, before more of it is asked for
CONFIG_POOL_ENTRIES_MAX: Final = 4096  # distinct configs that stream rows share
GIVE_BACK_LOOK_SECS: Final = 5.0  # from one look for memory that a burst has left to the next
GIVE_BACK_BYTES_MIN: Final = 64 * MIB  # that must have come since the last time
GIVE_BACK_CPU_SHARE_MAX: Final = 0.2  # of one core: who has more to do will need it again

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
MERGE_PART_BYTES: Final = 64 * MIB  # of rows for one task, which holds about four times that
MERGE_PART_BYTES_MIN: Final = 8 * MIB  # where there is less of it, fewer tasks
MERGE_PIECE_BYTES: Final = 2 * MIB  # of rows that go through the shuffle as one value
MERGE_CLASS_BYTES_MIN: Final = 4 * MIB  # of rows that expire together: less gets no file of its own
MERGE_SMALL_BYTES: Final = 4 * MIB  # of rows: less than this does not stand alone
MERGE_BYTES_MAX: Final = 8 * 1024 * MIB  # of rows that are merged at once
MERGE_GENERATIONS_MAX: Final = 64
RETAIN_ROUND_BYTES: Final = 1024 * MIB  # of rows that one version of the table rewrites
RETAIN_DEAD_SHARE_MAX: Final = 0.1  # of what is live: more makes files be rewritten
RETAIN_DEAD_SHARE_AIM: Final = 0.02  # until so little is left
RETAIN_SETTLED_SECS: Final = 86_400.0  # a file with dead rows is rewritten at the latest after this
RETAIN_SKEW_SECS: Final = 1  # between the clocks of the server and of the pipeline
INDEX_FETCHES: Final = 8  # sidecars that the driver fetches at once
VACUUM_REQUESTS: Final = 16  # side by side
CATALOG_FETCHES: Final = 32  # beginnings of commits that the driver fetches at once
PIPELINE_REPORTS_KEPT: Final = 100
EXPORT_PART_BYTES: Final = 32 * MIB  # of records in one part; its task holds about four times that
EXPORT_PART_BYTES_MIN: Final = 4 * MIB  # where there is less, fewer tasks
IMPORT_CHUNK_BYTES: Final = 32 * MIB  # of records that are on their way at once, a source
IMPORT_FETCH_BYTES: Final = 16 * MIB  # of an object that are fetched at once
IMPORT_READ_ROWS_MAX: Final = 65_536  # that are read at once
IMPORT_LINE_BYTES_MAX: Final = 8 * MIB  # of JSON, which may be six times as long as what it says
IMPORT_STREAMS: Final = 8  # that are appended to at once
REPLAY_STREAMS_PACED: Final = 256  # that are replayed at once, where each waits for its time
EXPORT_FETCHES: Final = 16  # objects that an export fetches at once, a process
METER_CLOSED_AFTER_SECS: Final = 900  # a period is written so long behind its end
METER_MINUTES_KEPT_DAYS: Final = 35  # in the usage table: of basins; then their hours stay,
METER_HOURS_KEPT_DAYS: Final = 400  # then their days, for ever
METER_STREAM_MINUTES_KEPT_DAYS: Final = 7
METER_STREAM_HOURS_KEPT_DAYS: Final = 62
METER_FILES_JOINED: Final = 8  # small files of a kind that become one
METER_FILE_BYTES_SMALL: Final = 4 * MIB
METER_FILE_ROWS: Final = 1 << 20  # of a file that a task writes
METER_VERSIONS_KEPT: Final = 100  # of the usage table's log below its newest checkpoint
USAGE_TABLE_CACHE_BYTES: Final = 32 * MIB  # of its files that the server keeps as columns
AUDIT_FINDINGS_MAX: Final = 1_000  # told of one audit, and of one of its tasks; the rest is counted
AUDIT_WINDOW_BYTES: Final = 8 * MIB  # of a segment that a task of an audit holds at once
AUDIT_PIECES_MAX: Final = 10_000  # parts of the log that are in the history in part, compared
AUDIT_SHARD_FACTS: Final = 1 << 20  # ranges of streams that one task puts together
PIPELINE_LOG_TAIL_BYTES: Final = 64 * KIB  # of Spark's own log, where it fails

# The pipeline as a child of the server

PIPELINE_POLL_SECS: Final = 1.0  # between two looks at what waits, which cost nothing
PIPELINE_GRACE_SECS: Final = 10.0  # behind a start of the server, which goes first
PIPELINE_IDLE_SECS: Final = 120.0  # without work: its process goes, and more than 1 GB with it
PIPELINE_UPKEEP_SECS: Final = 3600.0  # a run at the latest: data expires where nothing is appended
PIPELINE_RESTART_SECS_MIN: Final = 1.0
PIPELINE_RESTART_SECS_MAX: Final = 300.0
PIPELINE_BEAT_SECS: Final = 5.0  # how often it tells that it works
PIPELINE_SILENCE_SECS: Final = 60.0  # without a word for so long, it does not
PIPELINE_STOP_SECS: Final = 6.0  # for its own end, before it is killed
PIPELINE_LINE_BYTES_MAX: Final = 256 * KIB  # of what it says

# Clients
CLIENT_CONNECT_SECS_MAX: Final = 5.0
CLIENT_CALL_SECS_MAX: Final = 30.0
CLIENT_SILENCE_SECS_MAX: Final = 20.0  # of a session, which says something every 15 s at the latest
CLIENT_IDLE_SECS_MAX: Final = 5.0  # a server may close a connection that has been idle for longer
CLIENT_MOVE_SECS_MIN: Final = 60.0  # between two moves that a server asks for
CLIENT_ANSWER_BYTES_MAX: Final = 16 * MIB
CLIENT_RECEIVE_BYTES: Final = 256 * KIB
CLIENT_INFLIGHT_BYTES: Final = 5 * MIB  # of an append session, as S2's own clients have it
CLIENT_BATCH_ROWS: Final = 10_000  # of Arrow; from here on, or from so many bytes,
CLIENT_BATCH_BYTES: Final = 4 * MIB  # what has come is handed out
SOURCE_RETRY_SECS: Final = 60.0  # of the connector: how long a read tries again without success
SOURCE_RETRY_SECS_MAX: Final = 86_400.0
SOURCE_PARTITION_RECORDS: Final = 250_000  # for one task of the connector, unless it is told
SOURCE_PARTITIONS_MAX: Final = 100_000
SOURCE_TASKS: Final = 200  # unless minPartitions asks for more: above it, a task reads some streams
SOURCE_STREAM_WEIGHT: Final = 1_000  # records that could be read while one more stream is opened
SOURCE_LOOKS_AT_ONCE: Final = 8  # streams that the connector asks for their tails, side by side

# Housekeeping

# The connector's sink
SINK_PART_BYTES: Final = 16 * MIB  # of rows that a task gathers before it stages them
SINK_INLINE_BYTES_MAX: Final = 64 * KIB  # of a task's rows that need no object of their own
SINK_MANIFEST_INLINE_BYTES_MAX: Final = MIB  # of rows in a manifest; more become an object
SINK_STREAMS_AT_ONCE: Final = 8  # that the driver appends to side by side
SINK_ROWS_DIGITS_MAX: Final = 12  # of the number of rows that a batch has for one stream
SINK_MARKER_NAME_BYTES_MAX: Final = 64
SINK_WRITER_CHARS_MAX: Final = 64
SINK_RETRY_SECS: Final = 60.0  # without any progress, before a batch fails
SINK_RETRY_SECS_MAX: Final = 86_400.0

# Buckets
OBJECT_KEY_BYTES_MAX: Final = 768
OBJECT_KEY_SEGMENT_BYTES_MAX: Final = 255  # a file's name
BUCKET_PREFIX_BYTES_MAX: Final = 255
LIST_PAGE_KEYS: Final = 1000
LOCAL_THREADS: Final = 8  # for writing, and as many for reading
LOCAL_THREADS_MAX: Final = 64
LOCAL_JOBS_MAX: Final = 1024  # handed to the threads at once; more wait in line
LOCAL_CHAIN_MAX: Final = 64  # small reads that one thread does one behind the other
LOCAL_DIRECTORIES_OPEN_MAX: Final = 128
NURSERY_FILES: Final = 4096  # made in one directory; half of what a group of ext4's inodes holds
SPOOL_BYTES: Final = 1024 * MIB  # of newest commits of a remote bucket on a disk of this machine
SPOOL_BYTES_MIN: Final = 64 * MIB  # less is not worth it
SPOOL_DISK_SHARE: Final = 4  # it takes at most this part of the space that is free
SPOOL_OBJECT_SHARE: Final = 4  # and an object at most this part of it
SPOOL_PENDING_BYTES_MAX: Final = 64 * MIB  # that wait for the disk; beyond, they are left out
SPOOL_READERS: Final = 4
GENTLE_PIECE_BYTES: Final = 256 * KIB  # of a large object, put beside a server on its disk
PIECE_REST_US: Final = 4_000  # behind each: 64 MB/s for every writer
REMOTE_CONNECT_TIMEOUT_SECS: Final = 5.0
REMOTE_REQUEST_TIMEOUT_SECS: Final = 30.0
REMOTE_RETRIES: Final = 2
REMOTE_RETRY_SECS: Final = 5.0

assert BATCH_METERED_BYTES_MAX <= READ_BATCH_METERED_BYTES_MAX, "a full batch must be readable"
assert BATCH_RECORDS_MAX <= READ_BATCH_RECORDS_MAX, "a full batch must be readable"
assert RECORD_METERED_BYTES_MAX <= BATCH_METERED_BYTES_MAX, "a full record must fit a batch"
assert 2 * BATCH_METERED_BYTES_MAX <= FRAME_LENGTH_MAX, "a full batch of bodies must fit a frame"
assert 2 + FENCING_TOKEN_BYTES_MAX + 1 + 10 <= CONDITIONS_BYTES_MAX
assert QUICK_HELD_BYTES_MAX <= CONNECTION_WINDOW_BYTES // 4, "other bodies must be able to end"
assert 256 * LIST_LIMIT_MAX <= CATALOG_ANSWER_BYTES_KEPT_MAX, "a full page, unless names are long"
assert 8 * CATALOG_ANSWER_BYTES_KEPT_MAX <= CATALOG_ANSWERS_BYTES, "long lists leave some room"
assert READ_TOGETHER_RUNS <= LOCAL_CHAIN_MAX <= LOCAL_JOBS_MAX
assert 2 * READ_TOGETHER_RUNS * READ_TOGETHER_BYTES_MAX <= READ_CACHE_BYTES // 2, "two are ahead"
assert COMMIT_SPLIT_BYTES <= COMMIT_SPLIT_BYTES_MAX
assert COMMIT_BYTES_MAX <= SPOOL_PENDING_BYTES_MAX
assert COMMIT_SPLIT_BYTES_MAX <= SPOOL_BYTES_MIN // SPOOL_OBJECT_SHARE
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
assert USAGE_WINDOW_SECS_MAX < METER_MINUTES_KEPT_DAYS * 86_400, "a full window of minutes"
assert USAGE_MINUTES_KEPT * 60 > 2 * METER_CLOSED_AFTER_SECS, "minutes must close in time"
assert TOKEN_CHECK_SECS + TOKEN_ENDED_GRACE_SECS < SESSIONS_OUTLIVE_TOKENS_SECS_MAX
