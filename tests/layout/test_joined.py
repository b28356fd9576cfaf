"""Small runs joined to one batch give what each of them gives alone; hostile bytes give less."""

import struct
from collections.abc import Sequence
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from bourn.layout import joined
from bourn.layout.codec import cut, decode_sequenced, encode_sequenced
from bourn.layout.entry import Entry, encode_batch
from bourn.layout.joined import Joined, join, locate
from bourn.layout.json_records import encode_json_batch
from bourn.layout.kernels import compiled
from bourn.layout.records import RecordFormatError
from bourn.layout.runs import RUN_BYTES, RunIndex, rows_of
from bourn.limits import U64_MAX
from bourn.model.record import SequencedRecord
from tests.layout.run_histories import (
    EDGES,
    NO_LIMIT,
    NOW_MS,
    SMOOTH,
    History,
    add_row,
    address_of,
    commit_of,
    histories,
    history_of,
    others,
    ring_of,
    seeds,
    whole_histories,
)

ROW = struct.Struct("<QQQQIIIIII")


def records_of(entries: Sequence[Entry]) -> list[SequencedRecord]:
    return [
        record
        for one in entries
        for record in decode_sequenced(
            one.payload, one.count, one.first_seq_num, one.timestamps, 0, one.count
        )
    ]


def wire_of(entries: Sequence[Entry]) -> bytes:
    return b"".join(
        encode_sequenced(one.payload, one.count, one.first_seq_num, one.timestamps, 0, one.count)
        for one in entries
    )


def json_of(entries: Sequence[Entry], *, is_base64: bool) -> bytes:
    slices = tuple((one, 0, one.count) for one in entries)
    return encode_json_batch(slices, b"}", is_base64=is_base64)


def wanted(
    history: History, records_max: int = NO_LIMIT, metered_max: int = NO_LIMIT
) -> list[list[Entry]]:
    """The runs that go together, said in plain Python."""
    taken: list[list[Entry]] = []
    position, count, metered = history.position, 0, 0
    for run in history.runs:
        for entry in run or ():
            kept_alike = not taken or entry.retention_secs == taken[0][0].retention_secs
            if (
                entry.stream_id != history.stream_id
                or entry.first_seq_num != position
                or not kept_alike
                or entry.is_expired(NOW_MS)
            ):
                return taken
            position = entry.end_seq_num
        is_enough = bool(taken) and (count >= records_max or metered >= metered_max)
        if run is None or is_enough:
            return taken
        taken.append(run)
        count += sum(entry.count for entry in run)
        metered += sum(entry.metered_bytes for entry in run)
    return taken


def check(found: Joined | None, runs: list[list[Entry]]) -> None:
    """The batch is these runs, one after the other."""
    if found is None:
        assert not runs
        return
    batch, entries = found.batch, [entry for run in runs for entry in run]
    assert found.runs == len(runs)
    assert batch.stream_id == entries[0].stream_id
    assert batch.first_seq_num == entries[0].first_seq_num
    assert batch.end_seq_num == entries[-1].end_seq_num
    assert batch.first_timestamp == entries[0].first_timestamp
    assert batch.last_timestamp == entries[-1].last_timestamp
    assert batch.count == sum(entry.count for entry in entries)
    assert batch.metered_bytes == sum(entry.metered_bytes for entry in entries)
    assert batch.header_count == sum(entry.header_count for entry in entries)
    assert batch.has_commands is any(entry.has_commands for entry in entries)
    assert batch.arrival_ms == min(entry.arrival_ms for entry in entries)
    assert batch.retention_secs == entries[0].retention_secs
    assert batch.expires_s == min(entry.expires_s for entry in entries)
    assert records_of([batch]) == records_of(entries)


@settings(max_examples=400)
@given(histories)
def test_the_batch_is_the_runs_one_after_the_other_up_to_the_first_that_does_not_go_with_them(
    history: History,
) -> None:
    check(history.join(), wanted(history))


@settings(max_examples=200)
@given(histories)
def test_every_limit_is_reached_by_the_last_run_and_not_before(history: History) -> None:
    runs = wanted(history)
    counts = accumulate(sum(entry.count for entry in run) for run in runs)
    weights = accumulate(sum(entry.metered_bytes for entry in run) for run in runs)
    for limit in {count + more for count in counts for more in (-1, 0, 1)}:
        check(history.join(records_max=limit), wanted(history, records_max=limit))
    for limit in {weight + more for weight in weights for more in (-1, 0, 1)}:
        check(history.join(metered_max=limit), wanted(history, metered_max=limit))


@settings(max_examples=200)
@given(whole_histories, st.data())
def test_the_codecs_make_of_it_what_they_make_of_the_runs(
    history: History, data: st.DataObject
) -> None:
    found, entries = history.join(), [entry for run in history.runs for entry in run or ()]
    assert found is not None
    batch = found.batch
    assert wire_of([batch]) == wire_of(entries)
    for is_base64 in (False, True):
        assert json_of([batch], is_base64=is_base64) == json_of(entries, is_base64=is_base64)
    start = data.draw(st.integers(0, batch.count))
    records_max = data.draw(st.integers(0, batch.count))
    until = data.draw(st.none() | st.sampled_from(batch.timestamps.tolist()))  # type: ignore[union-attr]
    stop, metered = cut(
        batch.payload,
        batch.count,
        batch.timestamps,
        start,
        records_max=records_max,
        metered_max=NO_LIMIT,
        until=until,
        encoded_max=NO_LIMIT,
        first_seq_num=batch.first_seq_num,
    )
    kept = [
        record
        for record in records_of(entries)[start : start + records_max]
        if until is None or record.timestamp < until
    ]
    assert stop - start == len(kept)
    weights = [
        8 + len(body) + sum(2 + len(name) + len(value) for name, value in pairs)
        for _, _, body, pairs in kept
    ]
    assert metered == sum(weights)
    part = decode_sequenced(
        batch.payload, batch.count, batch.first_seq_num, batch.timestamps, start, stop
    )
    assert part == kept


@settings(max_examples=200)
@given(whole_histories)
def test_it_expires_with_the_first_of_its_records(history: History) -> None:
    found = history.join()
    assert found is not None
    entries = [entry for run in history.runs for entry in run or ()]
    if found.batch.retention_secs:
        end_ms = min(entry.arrival_ms + 1000 * entry.retention_secs for entry in entries)
        assert not found.batch.is_expired(end_ms - 1)
        assert found.batch.is_expired(end_ms)
        last = history.join(now_ms=end_ms - 1)
        assert last is not None
        assert last.runs == len(history.runs)
        behind = history.join(now_ms=end_ms)
        assert behind is None or behind.runs < len(history.runs)
    else:
        later = history.join(now_ms=2**62)
        assert later is not None
        assert later.runs == len(history.runs)


@settings(max_examples=200)
@given(whole_histories, st.data())
def test_runs_that_are_too_large_or_in_other_commits_are_not_at_hand(
    history: History, data: st.DataObject
) -> None:
    rows, first = list(history.table), history.first_commit
    length_max = data.draw(st.sampled_from([row.length for row in rows])) - data.draw(
        st.integers(0, 1)
    )
    begin = first + data.draw(st.integers(0, len(history.objects)))
    end = begin + data.draw(st.integers(0, len(history.objects)))
    places = locate(
        history.table.rows(0, len(rows)), history.words(), begin, end, length_max
    ).reshape(-1, 2)
    for row, (address, size) in zip(rows, places.tolist(), strict=True):
        is_there = row.length <= length_max and begin <= row.commit < end
        lies_at = address_of(history.objects[row.commit - first]) + row.offset
        assert (address, size) == ((lies_at, row.length) if is_there else (0, 0))


@settings(max_examples=200)
@given(whole_histories, st.data())
def test_it_begins_at_the_position_or_not_at_all(history: History, data: st.DataObject) -> None:
    places, position = history.places(), history.position
    off = data.draw(st.sampled_from([-1, 1, 2**32, -(2**32)]))
    if 0 <= position + off <= U64_MAX:
        assert join(places, history.stream_id, position + off, NOW_MS, 9, 9) is None
    assert join(places, history.stream_id ^ 1, position, NOW_MS, 9, 9) is None
    assert join(places[:0], history.stream_id, position, NOW_MS, 9, 9) is None


@given(st.integers(0, 9), st.integers(0, 12), st.integers(0, 12))
def test_rows_are_taken_from_anywhere_as_many_as_there_are(many: int, at: int, count: int) -> None:
    index = RunIndex()
    for number in range(many):
        add_row(index, number, number, [64, 80], 1)
    rows = index.rows(at, count)
    assert rows == index.to_bytes()[at * RUN_BYTES : (at + count) * RUN_BYTES]
    assert list(rows_of(rows, count)) == list(index)[at : at + count]
    assert list(rows_of(rows, 1)) == list(index)[at : at + min(count, 1)]


def test_every_kernel_has_one_specialisation_and_warm_compiles_it() -> None:
    said: list[str] = []
    joined.warm(said.append)
    for name in compiled.JOIN_NAMES:
        assert len(getattr(joined.KERNELS, name).signatures) == 1
    before = list(said)
    joined.warm(said.append)
    assert said == before, "warm is silent once it is warm"


# Hostile bytes


def refused_or_told(found: Joined) -> None:
    """Whatever has been joined, the codecs read it or refuse it."""
    batch = found.batch
    for look in (
        lambda: wire_of([batch]),
        lambda: records_of([batch]),
        lambda: json_of([batch], is_base64=False),
    ):
        try:
            look()
        except (RecordFormatError, ValueError):  # of the latter: numbers beyond the last
            assert batch.count == 0 or len(batch.payload) >= 8 * batch.count


FIELDS_AT = [8, 9, 11, 12, 13, 16, 24, 32, 40, 41, 47, 56, 57, 59, 60, 64, 72, 76, 80, 84, 88]


@settings(max_examples=500)
@given(whole_histories, st.data())
def test_changed_bytes_never_do_more_than_to_end_what_is_joined(
    history: History, data: st.DataObject
) -> None:
    rows, whole = list(history.table), [entry for run in history.runs for entry in run or ()]
    at = data.draw(st.integers(0, len(rows) - 1))
    row = rows[at]
    changed = bytearray(history.objects[row.commit - history.first_commit])
    for _ in range(data.draw(st.integers(1, 3))):
        inside = data.draw(st.sampled_from(FIELDS_AT) | st.integers(8, row.length - 1))
        value = st.sampled_from([0, 1, 2, 3, 0x7F, 0x80, 0xFF]) | st.integers(0, 255)
        changed[row.offset + min(inside, row.length - 1)] = data.draw(value)
    history.objects[row.commit - history.first_commit] = bytes(changed)
    found = history.join()
    before = sum(entry.count for run in history.runs[:at] for entry in run or ())
    if found is None:
        assert at == 0
        return
    assert found.runs >= at
    refused_or_told(found)
    batch = found.batch
    if before:
        first = decode_sequenced(
            batch.payload, batch.count, batch.first_seq_num, batch.timestamps, 0, before
        )
        assert first == records_of(whole)[:before], "what comes before it is untouched"


@given(whole_histories, st.data())
def test_objects_that_are_cut_short_have_no_run_beyond_their_end(
    history: History, data: st.DataObject
) -> None:
    rows = list(history.table)
    at = data.draw(st.integers(0, len(rows) - 1))
    row = rows[at]
    place = row.commit - history.first_commit
    end = row.offset + row.length
    left = data.draw(st.sampled_from([0, row.offset, end - 1, end]))
    history.objects[place] = history.objects[place][:left]
    found = history.join()
    assert (found.runs if found else 0) == (len(rows) if left == end else at)


hostile_numbers = st.sampled_from([0, 1, 71, 72, 2**31, 2**32 - 1]) | st.integers(0, 2000)


@settings(max_examples=500)
@given(
    whole_histories,
    st.lists(
        st.tuples(st.sampled_from([*EDGES, None]), hostile_numbers, hostile_numbers), max_size=6
    ),
    st.data(),
)
def test_rows_that_point_anywhere_find_nothing_outside_of_an_object(
    history: History, points: list[tuple[int | None, int, int]], data: st.DataObject
) -> None:
    first, objects = history.first_commit, history.objects
    hostile = []
    for commit, offset, length in points:
        ordinal = commit
        if ordinal is None:
            ordinal = first + data.draw(st.integers(0, len(objects) - 1))
            up_to_the_end = max(0, len(objects[ordinal - first]) - offset)
            hostile.append(ROW.pack(0, 0, 0, ordinal, offset, up_to_the_end, 1, 8, 0, 0))
        hostile.append(ROW.pack(0, 0, 0, ordinal, offset, length, 1, 8, 0, 0))
    good = history.table.to_bytes()
    at = data.draw(st.integers(0, len(good) // RUN_BYTES)) * RUN_BYTES
    rows = good[:at] + b"".join(hostile) + good[at:]
    places = locate(rows, history.words(), first, first + len(objects), NO_LIMIT)
    spans = [(address_of(one), address_of(one) + len(one)) for one in objects]
    for address, size in places.reshape(-1, 2).tolist():
        is_inside = any(low <= address <= address + size <= high for low, high in spans)
        assert is_inside or (address, size) == (0, 0)
    found = join(places, history.stream_id, history.position, NOW_MS, NO_LIMIT, NO_LIMIT)
    taken = found.runs if found else 0
    assert taken >= at // RUN_BYTES, "those before them are joined as ever"
    if found is not None:
        refused_or_told(found)


@settings(max_examples=25)
@given(seeds)
def test_a_row_that_ends_within_a_batch_is_not_joined(seed: int) -> None:
    history = history_of(seed, 1, SMOOTH, 0)
    (row,), (run,) = history.table, history.runs
    ends = list(accumulate(len(b"".join(encode_batch(entry)[2])) for entry in run or ()))
    for length in [*range(1, row.length, 13), *(end + off for end in ends for off in (-1, 0))]:
        index = RunIndex()
        add_row(index, row.first_seq_num, row.commit, [row.offset, length], row.count)
        found = join(
            locate(index.rows(0, 1), history.words(), 0, 2**62, NO_LIMIT),
            *(history.stream_id, row.first_seq_num, NOW_MS, NO_LIMIT, NO_LIMIT),
        )
        assert (found is not None) == (length in ends), length


@given(whole_histories, st.sampled_from([-1, 1, 2**31]))
def test_records_that_do_not_end_where_their_batch_does_are_not_joined(
    history: History, off: int
) -> None:
    row, entry = list(history.table)[-1], (history.runs[-1] or [])[0]
    place = row.commit - history.first_commit
    changed = bytearray(history.objects[place])
    stamps = 1 if isinstance(entry.timestamps, int) else entry.count
    last_at = row.offset + 72 + 8 * stamps + 4 * (entry.count - 1)
    (last,) = struct.unpack_from("<I", changed, last_at)
    struct.pack_into("<I", changed, last_at, last + off)
    history.objects[place] = bytes(changed)
    found = history.join()
    assert (found.runs if found else 0) == len(history.runs) - 1


def test_a_row_of_no_length_adds_no_record() -> None:
    index, (_, entries) = RunIndex(), others(1, 0)
    data, at = commit_of(0, [(1, entries)])
    add_row(index, 0, 0, [at[0], 0], 1)
    places = locate(index.rows(0, 1), ring_of([data], 0), 0, 1, NO_LIMIT)
    found = join(places, 1, 0, NOW_MS, 9, 9)
    assert found is None or not found.batch.count
