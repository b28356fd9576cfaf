"""What every SDK must be able to do: each name is a function in each language's program."""

from typing import NamedTuple


class Scenario(NamedTuple):
    name: str
    is_compressed: bool = False  # run once for every compression
    is_durable: bool = False  # restarts the server
    is_bulk: bool = False  # many batches: left out where calls are traced


SCENARIOS = (
    Scenario("basins_are_created_listed_changed_and_deleted"),
    Scenario("streams_are_created_listed_changed_and_deleted"),
    Scenario("listings_come_in_pages_and_in_byte_order"),
    Scenario("ensuring_says_whether_it_created_updated_or_left_alone"),
    Scenario("locations_are_listed_and_set"),
    Scenario("what_is_wrong_is_refused_with_its_own_code"),
    Scenario("streams_appear_on_append_and_on_read"),
    Scenario("a_key_without_a_cipher_changes_nothing"),
    Scenario("records_are_read_back_exactly", is_compressed=True),
    Scenario("the_largest_batches_are_taken", is_compressed=True),
    Scenario("appends_are_conditional"),
    Scenario("a_session_fails_at_its_first_unmet_condition"),
    Scenario("fences_and_trims_take_effect"),
    Scenario("timestamps_follow_the_mode_of_the_stream"),
    Scenario("reads_start_and_stop_where_told"),
    Scenario("reading_what_is_unwritten_says_the_tail"),
    Scenario("a_session_of_thousands_of_batches_is_exact", is_compressed=True, is_bulk=True),
    Scenario("a_producer_batches_and_acks_each_record", is_compressed=True),
    Scenario("records_are_batched_by_helpers"),
    Scenario("a_reader_follows_and_knows_when_it_has_caught_up", is_compressed=True),
    Scenario("many_sessions_share_a_client"),
    Scenario("a_reader_ends_when_its_stream_is_deleted"),
    Scenario("access_tokens_are_issued_listed_and_revoked"),
    Scenario("usage_is_measured"),
    Scenario("everything_is_there_after_a_restart", is_durable=True),
    Scenario("an_append_session_outlives_a_kill", is_durable=True),
    Scenario("an_append_session_outlives_a_stop_without_repeating", is_durable=True),
    Scenario("a_read_session_outlives_a_kill", is_durable=True),
    Scenario("a_read_session_outlives_a_stop", is_durable=True),
)

COMPRESSIONS = ("none", "gzip", "zstd")
