"""The checker of the proof: what is right passes, and each thing that can be wrong is found."""

import pytest

from bourn.model.record import SequencedRecord
from tests.proof.content import Content, first_at, timestamp_of, trim_point
from tests.proof.ledger import Check, Ledger
from tests.proof.sabotage import SABOTAGES

PLAIN, TRIMMED = 0, 3


@pytest.fixture
def ledger():
    return Ledger(Content(seed=1), streams=10)


def records(ledger, stream, first, end):
    content, generation = ledger.content, stream.known.generation
    wanted = ((seq, content.record(stream.index, generation, seq)) for seq in range(first, end))
    return [
        SequencedRecord(seq, record.timestamp, record.body, record.headers)
        for seq, record in wanted
    ]


def checked(ledger, stream, found, *, start=0, at_tail=True):
    check = Check(ledger, stream, start)
    check.feed(found)
    check.finish(at_tail=at_tail)
    return ledger.violations


def test_what_was_acknowledged_and_comes_whole_is_right(ledger):
    stream = ledger.streams[PLAIN]
    stream.settled(500)
    assert not checked(ledger, stream, records(ledger, stream, 0, 500))
    assert not checked(ledger, stream, records(ledger, stream, 123, 500), start=123)
    assert not checked(ledger, stream, records(ledger, stream, 0, 100), at_tail=False)
    stream.sends(20)
    assert not checked(ledger, stream, records(ledger, stream, 0, 520)), "an ack may be on its way"
    assert ledger.reads == 4


@pytest.mark.parametrize("name", SABOTAGES)
def test_each_thing_that_a_wrong_server_could_deliver_is_found(ledger, name):
    stream = ledger.streams[PLAIN]
    stream.settled(50)
    assert checked(ledger, stream, SABOTAGES[name](records(ledger, stream, 0, 50)))


def test_a_lost_end_and_a_record_that_nobody_sent_are_found(ledger):
    stream = ledger.streams[PLAIN]
    stream.settled(50)
    assert "were acknowledged" in checked(ledger, stream, records(ledger, stream, 0, 49))[-1]
    assert "were sent" in checked(ledger, stream, records(ledger, stream, 0, 51))[-1]


def test_a_record_of_another_stream_or_of_the_one_before_is_found(ledger):
    stream, other = ledger.streams[PLAIN], ledger.streams[1]
    for one in (stream, other):
        one.settled(5)
    assert checked(ledger, stream, records(ledger, other, 0, 5))
    ledger.violations.clear()
    old = records(ledger, stream, 0, 5)
    stream.deleted()
    stream.created()
    stream.settled(5)
    assert checked(ledger, stream, old)


def test_what_was_trimmed_is_not_missed_and_not_wanted(ledger):
    stream = ledger.streams[TRIMMED]
    stream.settled(700)
    first = trim_point(TRIMMED, 700)
    assert 0 < first < 700
    assert not checked(ledger, stream, records(ledger, stream, first, 700))
    assert checked(ledger, stream, records(ledger, stream, 0, 700)), "it is read though trimmed"
    ledger.violations.clear()
    assert checked(ledger, stream, records(ledger, stream, first + 1, 700)), "one more is missing"


def test_a_time_finds_the_first_record_that_is_not_older():
    for seq in (0, 1, 1000):
        assert first_at(timestamp_of(seq)) == seq
        assert first_at(timestamp_of(seq) - 1) == seq
        assert first_at(timestamp_of(seq) + 1) == seq + 1
