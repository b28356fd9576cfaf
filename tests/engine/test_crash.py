"""The crash test itself: it passes on a good node, and it fails where a promise is broken."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.crash.buckets import LIES
from tests.crash.check import Inspector
from tests.crash.content import HASH_BYTES, hash_record, hash_records, make_records, make_token
from tests.crash.events import (
    Acked,
    Answered,
    AnyEvent,
    Asked,
    Dropped,
    Dropping,
    Dumped,
    Listed,
    Made,
    Making,
    Mark,
    Refused,
    Reporter,
    Seen,
    Submitted,
    Trouble,
)
from tests.crash.ledger import Ledger
from tests.crash.process import Process

ROOT = Path(__file__).parent.parent.parent
SEED = 7
STREAM = 5
NOW = 1_000


def run_command(*arguments: str) -> tuple[int, list[str]]:
    command = [sys.executable, "-m", "tests.crash", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


@pytest.mark.slow
def test_a_few_kills_and_a_fight_break_no_promise(tmp_path):
    """The command itself; `make crash` has kills of each kind, and all fights."""
    status, lines = run_command("--kills", "3", "--duel", "1", "--directory", str(tmp_path))
    assert status == 0, "\n".join(lines)
    assert re.fullmatch(r"3 kills, [1-9]\d* acked batches, 0 violations", lines[-1])
    assert re.fullmatch(r"1 duels, [1-9]\d* acked batches, 0 violations", lines[-2])
    assert not list(tmp_path.iterdir()), "a directory without violations is removed"


@pytest.mark.long
@pytest.mark.parametrize("lie", sorted(LIES))
def test_a_disk_that_lies_is_reported_with_the_seed_and_its_directory(tmp_path, lie):
    status, lines = run_command(
        *("--kills", "4", "--duel", "0", "--seed", "3", "--directory", str(tmp_path)),
        *("--sabotage", lie),
    )
    assert status == 1
    assert any(line.startswith("VIOLATION kills-1: ") for line in lines)
    assert any(str(tmp_path) in line and "--seed 3" in line for line in lines[-3:])
    assert re.fullmatch(r"\d+ kills, \d+ acked batches, [1-9]\d* violations", lines[-1])
    assert (tmp_path / "kills-1" / "bucket").is_dir()
    assert (tmp_path / "kills-1" / "events.jsonl").stat().st_size


# The judge, on stories made by hand


def hashes(*batches: int, kind: str = "records", argument: str = "") -> bytes:
    made = [hash_records(make_records(SEED, batch, kind, argument)) for batch in batches]
    return b"".join(part for parts in made for part in parts)


def size(batch: int, kind: str = "records", argument: str = "") -> int:
    return len(make_records(SEED, batch, kind, argument))


def acked(batch: int, start: int, count: int | None = None) -> Acked:
    end = (start + (size(batch) if count is None else count), NOW)
    return Acked(batch, (start, NOW), end, end)


def look(
    content: bytes, first: int = 0, token: str = "", timestamp: int = NOW, stream: int = STREAM
) -> list[AnyEvent]:
    """A complete look that finds one stream with this content."""
    count = len(content) // HASH_BYTES
    seen = [Seen(stream, first, [timestamp] * count, content)] if count else []
    tail = (first + count, timestamp if count else 0)
    return [
        Mark("looking"),
        Listed("stream", stream, deleting=False),
        *seen,
        Dumped(stream, tail, token),
        Mark("looked"),
    ]


def violations(*story: tuple[int, Sequence[AnyEvent]]) -> list[str]:
    inspector = Inspector(Ledger(SEED))
    for process, events in story:
        for event in events:
            inspector.apply(process, event)
    return inspector.ledger.violations


MULTIPLE = next(n for n in range(1, 100) if size(n) > 3)  # a batch of several records
OTHER = next(n for n in range(MULTIPLE + 1, 200) if size(n) > 3)
BEGIN: list[AnyEvent] = [Mark("opened", 1), Making("stream"), Made("stream", STREAM)]
FIRST: list[AnyEvent] = [
    *BEGIN,
    Submitted(MULTIPLE, STREAM, 1),
    acked(MULTIPLE, 0),
    Submitted(OTHER, STREAM, 1),
]
OPENED: list[AnyEvent] = [Mark("opened", 2)]


@pytest.mark.parametrize(
    "found", [hashes(MULTIPLE), hashes(MULTIPLE, OTHER)], ids=["without it", "with it"]
)
def test_an_open_batch_may_be_there_or_not(found):
    assert not violations((1, FIRST), (2, [*OPENED, *look(found)]))


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (b"", "is lost"),
        (hashes(MULTIPLE)[:-HASH_BYTES], "is lost"),
        (hashes(OTHER) + hashes(MULTIPLE), "other records stand"),
        (hashes(MULTIPLE, MULTIPLE), "placed elsewhere"),
        (hashes(MULTIPLE, OTHER, OTHER), "placed elsewhere"),
        (hashes(MULTIPLE, OTHER)[:-HASH_BYTES], f"record 0 of {size(OTHER)} of batch {OTHER}"),
        (hashes(MULTIPLE) + hashes(OTHER)[HASH_BYTES:], "record 1 of"),
        (hashes(MULTIPLE) + b"nobody's", "nobody has submitted"),
    ],
)
def test_records_other_than_the_promised_are_reported(found, complaint):
    assert any(complaint in what for what in violations((1, FIRST), (2, [*OPENED, *look(found)])))


def test_another_timestamp_is_reported():
    found = violations((1, FIRST), (2, [*OPENED, *look(hashes(MULTIPLE), timestamp=NOW + 1)]))
    assert any("has another timestamp" in what for what in found)


def test_what_a_reader_saw_must_stay():
    seen = Seen(STREAM, size(MULTIPLE), [NOW], hashes(OTHER)[:HASH_BYTES])
    found = violations((1, [*FIRST, seen]), (2, [*OPENED, *look(hashes(MULTIPLE))]))
    assert any("was read before" in what for what in found)


@pytest.mark.parametrize(
    "told",
    [
        [Asked(1, STREAM), Answered(1, STREAM, (size(MULTIPLE) + 1, NOW))],
        [
            Submitted(1_000, STREAM, 2, expect="refusal", match_seq_num=9_999),
            Refused(1_000, next_seq_num=size(MULTIPLE) + 1),
        ],
    ],
    ids=["by an answer", "by a refusal"],
)
def test_a_tail_that_was_told_must_not_go_back(told):
    found = violations((1, [*FIRST, *told]), (2, [*OPENED, *look(hashes(MULTIPLE))]))
    assert any("was told, and now it is" in what for what in found)


def test_a_refused_batch_must_not_be_there():
    refused: list[AnyEvent] = [Submitted(OTHER, STREAM, 1, "either"), Refused(OTHER)]
    found = violations((1, [*BEGIN, *refused]), (2, [*OPENED, *look(hashes(OTHER))]))
    assert any("nobody has submitted" in what for what in found)


def test_what_one_look_did_not_find_no_later_look_may_find():
    story = [(1, FIRST), (2, [*OPENED, *look(hashes(MULTIPLE))])]
    assert not violations(*story)
    late = (3, [Mark("opened", 3), *look(hashes(MULTIPLE, OTHER))])
    assert any("nobody has submitted" in what for what in violations(*story, late))


def test_an_open_batch_must_not_be_overtaken_by_its_writers_next():
    story = [*BEGIN, Submitted(MULTIPLE, STREAM, 1), Submitted(OTHER, STREAM, 1)]
    found = violations((1, story), (2, [*OPENED, *look(hashes(OTHER))]))
    assert any("its writer's later one is" in what for what in found)
    swapped = violations((1, story), (2, [*OPENED, *look(hashes(OTHER, MULTIPLE))]))
    assert any("stands behind its writer's" in what for what in swapped)


def test_commands_are_judged_by_their_effect():
    trim = ("trim", "2")
    token = make_token(OTHER)
    events = [
        *BEGIN,
        Submitted(MULTIPLE, STREAM, 1, "ack", *trim),
        acked(MULTIPLE, 0, size(MULTIPLE, *trim)),
        Submitted(OTHER, STREAM, 1, "ack", "fence", token),
    ]
    content = hashes(MULTIPLE, kind="trim", argument="2") + hashes(
        OTHER, kind="fence", argument=token
    )
    cut = content[2 * HASH_BYTES :]
    assert not violations((1, events), (2, [*OPENED, *look(cut, first=2, token=token)]))
    untrimmed = violations((1, events), (2, [*OPENED, *look(content, token=token)]))
    assert any("the trim point 2" in what for what in untrimmed)
    unfenced = violations((1, events), (2, [*OPENED, *look(cut, first=2)]))
    assert any("the token is ''" in what for what in unfenced)


def test_the_catalog_is_judged():
    nothing: list[AnyEvent] = [*OPENED, Mark("looking"), Mark("looked")]
    assert any("nobody deleted it" in what for what in violations((1, BEGIN), (2, nothing)))

    deleted: list[AnyEvent] = [*BEGIN, Dropping(STREAM), Dropped(STREAM)]
    assert not violations((1, deleted), (2, nothing))
    back = violations((1, deleted), (2, [*OPENED, *look(b"")]))
    assert any("back after its deletion" in what for what in back)

    phantom = violations((1, [Mark("opened", 1)]), (2, [*OPENED, *look(b"")]))
    assert any("never asked for" in what for what in phantom)

    again: list[AnyEvent] = [*FIRST, Dropping(STREAM), Dropped(STREAM), Making("stream")]
    again.append(Made("stream", STREAM + 1))
    old_records = violations((1, again), (2, [*OPENED, *look(hashes(MULTIPLE), stream=STREAM + 1)]))
    assert any("nobody has submitted to this stream" in what for what in old_records)


def test_an_ack_after_the_takeover_must_be_of_what_the_newer_node_has_found():
    late = (1, [acked(OTHER, size(MULTIPLE))])
    with_it = (2, [*OPENED, *look(hashes(MULTIPLE, OTHER))])
    without = (2, [*OPENED, *look(hashes(MULTIPLE))])
    assert not violations((1, FIRST), with_it, late)
    assert any("without it" in what for what in violations((1, FIRST), without, late))
    later: list[AnyEvent] = [Submitted(1_000, STREAM, 1), acked(1_000, 50)]
    assert any("without it" in what for what in violations((1, FIRST), with_it, (1, later)))


def test_a_node_that_knows_of_a_newer_one_must_not_answer():
    answer: list[AnyEvent] = [Asked(1, STREAM), Answered(1, STREAM, (0, 0))]
    assert not violations((1, [*BEGIN, *answer]))
    assert violations((1, [*BEGIN, Mark("fenced"), *answer]))
    refusal: list[AnyEvent] = [Submitted(1, STREAM, 1, "refusal"), Refused(1, next_seq_num=0)]
    assert not violations((1, [*BEGIN, *refusal]))
    assert violations((1, [*BEGIN, Mark("fenced")]), (2, OPENED), (1, refusal))


def test_trouble_is_a_violation():
    assert violations((1, [Trouble("anything")])) == ["process 1: anything"]


def test_a_line_that_was_cut_short_is_no_event():
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    reporter = Reporter(writing)
    reporter.tell(Mark("opened", 3))
    os.write(writing, b'["mark","clo')
    process = Process(1, 0, reading)
    process.read()
    assert list(process.events()) == [Mark("opened", 3)]
    os.write(writing, b'sing",0]\n')
    os.close(writing)
    process.read()
    assert list(process.events()) == [Mark("closing")]
    assert process.at_end


def test_batches_are_made_again_from_their_numbers_and_none_of_several_records_is_like_another():
    made = [hash_records(make_records(SEED, number)) for number in range(300)]
    assert made == [hash_records(make_records(SEED, number)) for number in range(300)]
    firsts = [parts[0] for parts in made if len(parts) > 1]
    assert len(set(firsts)) == len(firsts) > 100
    assert hash_record(((b"a", b"b"),), b"c") != hash_record(((b"a", b""),), b"bc")
