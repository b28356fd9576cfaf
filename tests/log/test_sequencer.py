"""Admission, rule by rule."""

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bourn.errors import FencingTokenMismatch, Invalid, OutOfSequence, SeqNumMismatch
from bourn.layout.records import encode_records
from bourn.limits import AES_GCM_SEQ_NUM_MAX, U64_MAX
from bourn.log.sequencer import SEQ_NUM_MAX, Admitted, Rules, StreamState, admit, replay
from bourn.model.config import TimestampMode
from bourn.model.record import Fence, Record, StreamPosition, Trim, fence_record, trim_record

NOW = 1_700_000_000_000
PREFER = Rules()
REQUIRE = Rules(mode=TimestampMode.CLIENT_REQUIRE)
ARRIVAL = Rules(mode=TimestampMode.ARRIVAL)


def append(
    state: StreamState,
    *records: Record,
    match: int | None = None,
    token: str | None = None,
    rules: Rules = PREFER,
    now: int = NOW,
) -> Admitted:
    return admit(state, encode_records(records), match, token, rules, now)


def at(*timestamps: int | None) -> list[Record]:
    return [Record(timestamp=timestamp) for timestamp in timestamps]


def assigned(admitted: Admitted) -> list[int]:
    count = admitted.end.seq_num - admitted.start.seq_num
    if isinstance(admitted.timestamps, int):
        return [admitted.timestamps] * count
    assert admitted.timestamps.dtype == np.uint64
    return [int(timestamp) for timestamp in admitted.timestamps]


# Positions


def test_the_first_record_of_a_stream_gets_sequence_number_0() -> None:
    admitted = append(StreamState(), Record())
    assert admitted.start == StreamPosition(0, NOW)
    assert admitted.end == StreamPosition(1, NOW)
    assert admitted.state == StreamState(1, NOW)
    assert admitted.state.tail == admitted.end


def test_the_records_of_a_batch_are_numbered_on_from_the_state() -> None:
    admitted = append(StreamState(next_seq_num=7, last_timestamp=5), *at(6, 8, 8))
    assert admitted.start == StreamPosition(7, 6)
    assert admitted.end == StreamPosition(10, 8)
    assert admitted.state == StreamState(10, 8)


# Conditions


def test_the_right_match_seq_num_and_fencing_token_are_admitted() -> None:
    state = StreamState(next_seq_num=4, fencing_token="mine")
    assert append(state, Record(), match=4, token="mine").start.seq_num == 4


@pytest.mark.parametrize("wrong", [0, 3, 5, U64_MAX])
def test_a_wrong_match_seq_num_is_told_the_next_sequence_number(wrong: int) -> None:
    with pytest.raises(SeqNumMismatch) as refusal:
        append(StreamState(next_seq_num=4, trim_point=3), Record(), match=wrong)
    assert refusal.value.next_seq_num == 4


@pytest.mark.parametrize(("held", "wrong"), [("mine", ""), ("mine", "yours"), ("", "mine")])
def test_a_wrong_fencing_token_is_told_the_right_one(held: str, wrong: str) -> None:
    with pytest.raises(FencingTokenMismatch) as refusal:
        append(StreamState(fencing_token=held), Record(), token=wrong)
    assert refusal.value.fencing_token == held


def test_an_append_without_a_token_passes_a_fence() -> None:
    assert append(StreamState(fencing_token="mine"), Record()).state.fencing_token == "mine"


def test_the_empty_token_matches_an_unfenced_stream() -> None:
    assert append(StreamState(), Record(), token="").start.seq_num == 0


def test_the_fencing_token_is_judged_before_the_sequence_number() -> None:
    with pytest.raises(FencingTokenMismatch):
        append(StreamState(fencing_token="mine"), Record(), match=9, token="yours")


def test_the_sequence_number_is_judged_before_the_records() -> None:
    with pytest.raises(SeqNumMismatch):
        append(StreamState(), Record(), match=9, rules=REQUIRE)


# Commands


def test_a_fence_holds_from_the_next_batch_on() -> None:
    fenced = append(StreamState(fencing_token="old"), fence_record("new"), token="old").state
    assert fenced.fencing_token == "new"
    with pytest.raises(FencingTokenMismatch):
        append(fenced, Record(), token="old")


def test_a_batch_is_not_judged_by_the_fence_that_it_carries() -> None:
    with pytest.raises(FencingTokenMismatch) as refusal:
        append(StreamState(fencing_token="old"), fence_record("new"), token="new")
    assert refusal.value.fencing_token == "old"


def test_the_last_fence_of_a_batch_wins_also_if_it_clears_the_token() -> None:
    assert append(StreamState(), fence_record("a"), fence_record("b")).state.fencing_token == "b"
    assert append(StreamState(), fence_record("a"), fence_record("")).state.fencing_token == ""


@pytest.mark.parametrize(
    ("requested", "effective"),
    [(0, 3), (3, 3), (4, 4), (10, 10), (12, 12), (13, 12), (U64_MAX, 12)],
)
def test_a_trim_reaches_its_own_record_at_most_and_never_goes_back(
    requested: int, effective: int
) -> None:
    state = StreamState(next_seq_num=10, trim_point=3)
    after = append(state, Record(), trim_record(requested), Record()).state
    assert after.trim_point == effective


def test_the_furthest_trim_of_a_batch_wins() -> None:
    state = StreamState(next_seq_num=10)
    after = append(state, trim_record(8), trim_record(5), trim_record(2)).state
    assert after.trim_point == 8


# Timestamps


@pytest.mark.parametrize(
    ("rules", "given", "expected"),
    [
        (PREFER, [5, None, 7], [5, NOW, NOW]),
        (PREFER, [None], [NOW]),
        (PREFER, [5], [5]),
        (PREFER, [NOW + 1], [NOW]),
        (PREFER, [NOW + 1, NOW + 2], [NOW, NOW]),
        (PREFER, [0, 0], [0, 0]),
        (PREFER, [9, 3, 12, 11], [9, 9, 12, 12]),
        (REQUIRE, [3, NOW + 9], [3, NOW]),
        (ARRIVAL, [5], [NOW]),
        (ARRIVAL, [5, None, NOW + 9], [NOW, NOW, NOW]),
        (Rules(uncapped=True), [NOW + 1], [NOW + 1]),
        (Rules(uncapped=True), [NOW + 1, None, U64_MAX], [NOW + 1, NOW + 1, U64_MAX]),
        (Rules(mode=TimestampMode.ARRIVAL, uncapped=True), [NOW + 1, 1], [NOW, NOW]),
    ],
)
def test_the_mode_and_the_cap_choose_the_timestamp(
    rules: Rules, given: list[int | None], expected: list[int]
) -> None:
    assert assigned(append(StreamState(), *at(*given), rules=rules)) == expected


@pytest.mark.parametrize("rules", [PREFER, REQUIRE, ARRIVAL, Rules(uncapped=True)])
@pytest.mark.parametrize("given", [[4], [4, 5], [4, NOW]])
def test_no_timestamp_falls_below_the_one_before_it(rules: Rules, given: list[int]) -> None:
    previous = NOW + 1000
    admitted = append(StreamState(1, previous), *at(*given), rules=rules)
    assert assigned(admitted) == [previous] * len(given)


def test_a_clock_that_went_back_is_absorbed() -> None:
    before = append(StreamState(), Record(), now=NOW)
    after = append(before.state, Record(), now=NOW - 60_000)
    assert after.start.timestamp == NOW


def test_a_huge_uncapped_timestamp_raises_the_floor_also_for_arrival() -> None:
    raised = append(StreamState(), *at(U64_MAX), rules=Rules(uncapped=True)).state
    assert append(raised, Record(), rules=ARRIVAL).start.timestamp == U64_MAX


def test_timestamps_stay_exact_where_floats_are_not() -> None:
    given = [2**53 + 1, 2**53 + 3, 2**63 - 1, 2**63 + 1, U64_MAX - 1, U64_MAX]
    admitted = append(StreamState(), *at(*given), rules=Rules(uncapped=True))
    assert assigned(admitted) == given
    capped = append(StreamState(), *at(*given), now=2**63 + 3)
    assert assigned(capped) == [*given[:4], 2**63 + 3, 2**63 + 3]
    raised = append(StreamState(0, 2**63 - 1), *at(*given), rules=Rules(uncapped=True))
    assert assigned(raised) == [2**63 - 1] * 3 + given[3:]


@pytest.mark.parametrize("given", [[7], [None], [7, 7, 7], [9, 8, 7], [None, None]])
def test_a_timestamp_that_all_records_share_is_one_number(given: list[int | None]) -> None:
    timestamps = append(StreamState(), *at(*given)).timestamps
    assert type(timestamps) is int


@pytest.mark.parametrize("given", [[None], [None, None], [1, None], [None, 1], [1, None, 3]])
def test_client_require_refuses_a_batch_with_any_record_that_has_no_timestamp(
    given: list[int | None],
) -> None:
    with pytest.raises(Invalid, match=r"^record timestamp was required but was missing$"):
        append(StreamState(), *at(*given), rules=REQUIRE)


@pytest.mark.parametrize("count", [1, 3])
def test_records_that_are_all_marked_missing_count_as_without_timestamp(count: int) -> None:
    marked = msgspec.structs.replace(
        encode_records(at(*[7] * count)), missing=np.ones(count, dtype=np.bool_)
    )
    assert admit(StreamState(), marked, None, None, PREFER, NOW).timestamps == NOW
    with pytest.raises(Invalid, match="timestamp was required"):
        admit(StreamState(), marked, None, None, REQUIRE, NOW)


def test_client_require_asks_commands_for_a_timestamp_too() -> None:
    with pytest.raises(Invalid):
        append(StreamState(), fence_record("a"), rules=REQUIRE)
    assert append(StreamState(), fence_record("a", 1), rules=REQUIRE).state.fencing_token == "a"


TIMESTAMPS = st.one_of(
    st.integers(0, U64_MAX),
    st.sampled_from([0, 2**53, 2**53 + 1, 2**63 - 1, 2**63, U64_MAX - 1, U64_MAX]),
    st.integers(NOW - 9, NOW + 9),
)


@given(
    given_timestamps=st.lists(st.none() | TIMESTAMPS, min_size=1, max_size=300),
    previous=TIMESTAMPS,
    now=TIMESTAMPS,
    mode=st.sampled_from([TimestampMode.CLIENT_PREFER, TimestampMode.ARRIVAL]),
    uncapped=st.booleans(),
)
def test_long_batches_get_the_timestamps_that_record_by_record_code_gives(
    given_timestamps: list[int | None],
    previous: int,
    now: int,
    mode: TimestampMode,
    uncapped: bool,
) -> None:
    expected = []
    floor = previous
    for timestamp in given_timestamps:
        chosen = now if timestamp is None or mode is TimestampMode.ARRIVAL else timestamp
        if not uncapped:
            chosen = min(chosen, now)
        floor = max(floor, chosen)
        expected.append(floor)
    rules = Rules(mode, uncapped)
    admitted = append(StreamState(0, previous), *at(*given_timestamps), rules=rules, now=now)
    assert assigned(admitted) == expected


# The end of the numbers


def test_a_batch_may_take_the_last_sequence_number_but_not_pass_it() -> None:
    rules = Rules(seq_num_max=AES_GCM_SEQ_NUM_MAX)
    state = StreamState(next_seq_num=AES_GCM_SEQ_NUM_MAX - 1)
    full = append(state, Record(), Record(), rules=rules)
    assert full.end.seq_num == AES_GCM_SEQ_NUM_MAX + 1
    refusal = "^max assignable sequence number is 4294967295; attempted 4294967296$"
    with pytest.raises(Invalid, match=refusal):
        append(state, *at(1, 2, 3, 4), rules=rules)
    with pytest.raises(Invalid, match=refusal):
        append(full.state, Record(), rules=rules)


def test_a_stream_beyond_a_lowered_maximum_is_told_the_number_that_it_attempted() -> None:
    refusal = "^max assignable sequence number is 9; attempted 20$"
    with pytest.raises(Invalid, match=refusal):
        append(StreamState(next_seq_num=20), Record(), rules=Rules(seq_num_max=9))


def test_the_tail_of_a_full_stream_is_still_a_u64() -> None:
    assert append(StreamState(SEQ_NUM_MAX), Record()).end.seq_num == U64_MAX
    with pytest.raises(Invalid):
        append(StreamState(U64_MAX), Record())


def test_the_first_bad_record_of_a_batch_names_the_fault() -> None:
    rules = Rules(mode=TimestampMode.CLIENT_REQUIRE, seq_num_max=1)
    with pytest.raises(Invalid, match="timestamp was required"):
        append(StreamState(), *at(1, None, 3), rules=rules)
    with pytest.raises(Invalid, match=r"attempted 2$"):
        append(StreamState(), *at(1, 2, 3, None), rules=rules)
    with pytest.raises(Invalid, match=r"attempted 2$"):
        append(StreamState(), *at(1, 2, None), rules=rules)


# Replay


def test_replay_takes_the_step_that_admission_took() -> None:
    state = StreamState(10, 5, "old", 3)
    records = [fence_record("new"), trim_record(U64_MAX, 9), Record(timestamp=7)]
    admitted = append(state, *records)
    commands = ((0, Fence("new")), (1, Trim(U64_MAX)))
    assert replay(state, 10, 3, admitted.end.timestamp, commands) == admitted.state
    assert admitted.state == StreamState(13, NOW, "new", 12)


@pytest.mark.parametrize(
    ("first_seq_num", "count", "last_timestamp"),
    [(9, 1, 5), (11, 1, 5), (0, 1, 5), (10, 0, 5), (10, 1, 4)],
)
def test_replay_refuses_a_batch_that_cannot_follow(
    first_seq_num: int, count: int, last_timestamp: int
) -> None:
    with pytest.raises(OutOfSequence):
        replay(StreamState(10, 5), first_seq_num, count, last_timestamp, ())
