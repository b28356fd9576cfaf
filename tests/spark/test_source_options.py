"""What an option takes, and how an error names it."""

import base64
import pickle

import pytest

from bourn.spark.options import OptionError
from bourn.spark.options_source import (
    SOURCE_OPTIONS,
    Selection,
    SourceOptions,
    parse_source_options,
)

GIVEN = {"basin": "my-basin", "stream": "events", "endpoint": "http://127.0.0.1:1"}


def parsed(is_streaming: bool | None = None, **more: str) -> SourceOptions:
    return parse_source_options(GIVEN | more, is_streaming=is_streaming)


def test_the_defaults_are_those_of_the_document():
    batch, query = parsed(False), parsed(True)
    assert (batch.start.default, batch.end.default) == ("earliest", "latest")
    assert query.start.default == "latest"
    assert (batch.records_max, batch.bytes_max, batch.min_partitions) == (None, None, 0)
    assert (batch.fails_on_data_loss, batch.has_headers, batch.has_metered) == (True, True, False)
    assert pickle.loads(pickle.dumps(batch)) == batch


def test_names_are_taken_in_any_case():
    found = parsed(True, MAXRECORDSPERTRIGGER="7", failondataloss="FALSE", includeHeaders="false")
    assert (found.records_max, found.fails_on_data_loss, found.has_headers) == (7, False, False)


@pytest.mark.parametrize(
    ("text", "selection"),
    [
        ("a", Selection(("a",))),
        (" a , b/c ,a", Selection(("a", "b/c"))),
        ("ev*", Selection((), "ev")),
        ("*", Selection((), "")),
    ],
)
def test_streams_are_named_listed_or_share_a_prefix(text, selection):
    found = parsed(stream=text).selection
    assert found == selection
    assert found.takes("a") == (text != "ev*")


def test_positions_are_words_numbers_or_moments():
    assert parsed(startingOffsets="LATEST").start.of("events") == "latest"
    found = parsed(startingOffsets='{"events": 18446744073709551615}').start
    assert (found.of("events"), found.of("other")) == (2**64 - 1, "earliest")
    found = parsed(stream="a,b", endingOffsets='{"a": 3, "b": "latest"}').end
    assert (found.of("a"), found.of("b")) == (3, "latest")
    assert parsed(startingTimestamp="1700000000000").start.timestamp == 1_700_000_000_000
    for moment in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", "2026-01-31 12:00:00"):
        assert parsed(endingTimestamp=moment).end.timestamp == 1_769_860_800_000


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("basin", "", "option basin: is required"),
        ("basin", "My", "option basin: 'My' names no basin"),
        ("stream", "", "option stream: is required: write a name, names with commas, or a prefix"),
        ("stream", "a,,b", "option stream: '' names no stream"),
        ("stream", "a,..", "option stream: '..' names no stream"),
        (
            "endpoint",
            "host:80",
            "option endpoint: 'host:80' is no endpoint: write one such as http",
        ),
        ("encryptionKey", "c2hvcnQ=", "option encryptionKey: takes 32 bytes as base64"),
        ("compression", "lz4", "option compression: takes none or zstd or gzip, not 'lz4'"),
        ("retryTimeout", "-1", "option retryTimeout: takes 0 to 86400 seconds, not '-1'"),
        ("startingOffsets", "first", "option startingOffsets: takes earliest or latest, or JSON"),
        ("startingOffsets", "[1]", "option startingOffsets: takes earliest or latest, or JSON"),
        ("startingOffsets", '{"other": 1}', "option startingOffsets: names 'other', which the"),
        ("startingOffsets", '{"events": -1}', "takes a sequence number or earliest or latest for"),
        ("startingOffsets", '{"events": true}', "takes a sequence number or earliest or latest"),
        ("endingOffsets", "earliest", "option endingOffsets: takes latest, or JSON such as"),
        ("startingTimestamp", "yesterday", "option startingTimestamp: takes milliseconds since"),
        ("startingTimestamp", "99999999999999999999", "option startingTimestamp: takes milli"),
        ("minPartitions", "0", "option minPartitions: takes a number from 1 to 100000, not '0'"),
        ("maxRecordsPerTrigger", "1.5", "option maxRecordsPerTrigger: takes a number from 1 to"),
        ("failOnDataLoss", "no", "option failOnDataLoss: takes true or false, not 'no'"),
        ("maxBytesPerTrigger", "-5", "option maxBytesPerTrigger: takes a number from 1 to"),
        ("minPartitions", "9" * 5000, "option minPartitions: takes a number from 1 to 100000"),
        ("startingOffsets", "[" * 200_000, "option startingOffsets: takes earliest or latest, or"),
        ("startingOffsets", '{"events": 1.5}', "takes a sequence number or earliest or latest for"),
        ("endingTimestamp", "-1", "option endingTimestamp: takes milliseconds since 1970"),
        ("retryTimeout", "nan", "option retryTimeout: takes 0 to 86400 seconds, not 'nan'"),
        ("includeHeaders", "1", "option includeHeaders: takes true or false, not '1'"),
        ("includeMetered", "x", "option includeMetered: takes true or false, not 'x'"),
        ("accessToken", "two\nlines", "option accessToken: takes visible ASCII characters"),
        ("accessToken", "schlüssel", "option accessToken: takes visible ASCII characters"),
        ("path", "/data", "option path: is not known"),
        ("straem", "a", "option straem: is not known: did you mean stream?"),
        ("zzz", "a", "option zzz: is not known: it is none of endpoint, basin"),
    ],
)
def test_what_an_option_does_not_take_is_refused_by_its_name(option, value, text):
    with pytest.raises(OptionError) as refused:
        parsed(**{option: value})
    assert str(refused.value).startswith(text) or text in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_options_that_contradict_each_other_are_refused():
    with pytest.raises(OptionError, match="startingTimestamp: says the same as startingOffsets"):
        parsed(startingOffsets="latest", startingTimestamp="5")
    with pytest.raises(OptionError, match="endingOffsets: is for batch reads"):
        parsed(True, endingOffsets="latest")
    with pytest.raises(OptionError, match="maxRecordsPerTrigger: is for queries"):
        parsed(False, maxRecordsPerTrigger="5")


def test_secrets_are_taken_and_never_shown():
    key = base64.b64encode(bytes(range(32))).decode()
    found = parsed(accessToken="a-secret-token", encryptionKey=key)
    assert (found.settings.token, found.settings.encryption_key) == ("a-secret-token", key)
    assert "a-secret-token" not in repr(found)
    assert key not in repr(found)


def test_every_option_that_can_be_wrong_is_refused_above():
    (mark,) = test_what_an_option_does_not_take_is_refused_by_its_name.pytestmark
    assert {case[0] for case in mark.args[1]} >= set(SOURCE_OPTIONS)


def test_secrets_of_the_environment_are_checked_and_may_end_with_a_line(monkeypatch):
    monkeypatch.setenv("S2_ACCESS_TOKEN", "token\n")
    assert parsed().settings.token == "token"
    monkeypatch.setenv("S2_ENCRYPTION_KEY", "no key")
    with pytest.raises(OptionError, match=r"encryptionKey: takes 32 bytes .* S2_ENCRYPTION_KEY"):
        parsed()


def test_every_option_is_documented():
    from pathlib import Path  # noqa: PLC0415

    text = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    assert [name for name in SOURCE_OPTIONS if f"`{name}`" not in text] == []
