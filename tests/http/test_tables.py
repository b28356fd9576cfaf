"""Every row of the API's two tables has a test that sends the bytes, over both versions of HTTP.

The first table is the errors: each row is answered here as it stands (status, headers, body), and
named is the test in which a client causes it. The second is the differences between the older
documents and the reference. A row that nobody tests fails, and so does a test that has gone.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from bourn.errors import BournError
from bourn.http.problems import STATUS
from tests.http.clients import Api, Connected
from tests.http.conftest import BASIN
from tests.http.server import LoopThread, Server

HERE = Path(__file__).parent


class Row(NamedTuple):
    """An error, and where a client causes it; `never` says why none can."""

    code: str
    status: int
    tests: tuple[str, ...] = ()
    never: str = ""


ERRORS = (
    Row("bad_json", 400, ("test_errors.test_a_body_that_is_no_append",)),
    Row("bad_path", 400, ("test_routes.test_a_stream_name_that_is_none_is_a_bad_path",)),
    Row("bad_query", 400, ("test_routes.test_a_number_that_is_none_is_a_bad_query",)),
    Row("bad_header", 400, ("test_errors.test_a_missing_basin_header",)),
    Row("bad_proto", 400, ("test_errors.test_a_body_that_is_no_protobuf",)),
    Row(
        "bad_frame",
        400,
        ("test_append_sessions.test_a_bad_frame_ends_the_session_behind_the_acks_before_it",),
    ),
    Row("decryption_failed", 400, ("test_encryption.test_another_key_opens_nothing",)),
    Row("authn", 401, ("test_access.test_without_a_token_that_is_in_force_nothing_is_done",)),
    Row("permission_denied", 403, ("test_access.test_all_other_operations_do_not_suffice",)),
    Row("quota_exhausted", 403, ("test_quotas.test_streams_up_to_the_quota_of_each_basin",)),
    Row("basin_not_found", 404, ("test_errors.test_a_basin_that_is_not_there",)),
    Row("stream_not_found", 404, ("test_errors.test_a_stream_that_is_not_there",)),
    Row(
        "access_token_not_found",
        404,
        ("test_tokens.test_a_token_works_from_its_answer_on_until_it_is_revoked",),
    ),
    Row("request_timeout", 408, ("../hostile/test_attacks.test_a_body_that_drips_is_given_up",)),
    Row("resource_already_exists", 409, ("test_errors.test_what_exists_is_not_created_again",)),
    Row("basin_deletion_pending", 409, ("test_errors.test_a_basin_that_is_being_deleted",)),
    Row("stream_deletion_pending", 409, ("test_errors.test_a_stream_that_is_being_deleted",)),
    Row("transaction_conflict", 409, never="one writer: transactions wait for each other"),
    Row("invalid", 422, ("test_errors.test_a_batch_against_the_rules",)),
    Row(
        "rate_limited",
        429,
        (
            "test_limits.test_a_second_s_worth_of_requests_goes_at_once_and_then_what_flows_in",
            "test_limits.test_one_session_too_many_is_refused_until_another_has_ended",
        ),
    ),
    Row("client_hangup", 499, never="nobody is there to read it"),
    Row(
        "other",
        500,
        ("test_errors.test_an_append_whose_outcome_is_unknown_is_an_error_that_promises_nothing",),
    ),
    Row("storage", 500, never="a read of a damaged object: tests/engine/test_damage.py"),
    Row("not_implemented", 501, never="every part of the API is there"),
    Row("hot_server", 502, never="load waits, it is not shed"),
    Row(
        "unavailable",
        503,
        ("test_errors.test_a_node_that_lost_its_bucket_is_unavailable_and_unhealthy",),
    ),
    Row("server_draining", 503, ("test_draining.test_new_requests_are_told_to_go_elsewhere",)),
    Row("upstream_timeout", 504, never="there is no hop behind this server"),
)
CODELESS = {
    406: "test_negotiation."
    "test_a_client_that_takes_none_of_our_codings_is_told_so_and_nothing_happens",
    412: "test_records.test_a_failed_condition_is_412_with_one_key",
    415: "test_negotiation.test_other_codings_are_415_without_a_body",
    416: "test_records.test_a_read_of_what_is_not_written_is_416_with_the_tail",
}
# By the number of the row; a text in brackets says why there is nothing to send.
DIFFERENCES = {
    1: "test_dialects.test_the_session_paths_name_the_basin_in_the_path",
    2: "test_dialects.test_paths_of_streams_need_no_version",
    3: "test_dialects.test_any_host_will_do_with_the_header_and_names_nothing_without",
    4: "test_dialects.test_a_basin_may_be_named_by_the_host",
    5: "test_dialects.test_headers_come_as_objects_or_pairs_and_go_as_pairs",
    6: "test_dialects.test_what_is_empty_is_left_out",
    7: "test_dialects.test_text_that_looks_like_base64_is_text_unless_the_header_says_otherwise",
    8: "test_dialects.test_text_that_looks_like_base64_is_text_unless_the_header_says_otherwise",
    9: "test_dialects.test_a_fencing_token_has_36_bytes_at_most",
    10: "test_dialects.test_fencing_binds_only_those_who_give_a_token",
    11: "test_dialects.test_a_trim_may_trim_itself_and_its_number_is_big_endian",
    12: "test_dialects.test_a_trim_may_trim_itself_and_its_number_is_big_endian",
    13: "test_dialects.test_a_read_session_may_be_asked_for_by_accept",
    14: "test_dialects.test_a_session_is_never_coded_and_its_frames_advise_nothing",
    15: "test_draining.test_acks_carry_the_advice_and_the_session_goes_on",
    16: "test_read_sessions.test_a_terminal_frame_is_never_compressed",
    17: "test_append_sessions.test_a_bad_frame_ends_the_session_behind_the_acks_before_it",
    18: "test_append_sessions.test_a_terminal_frame_is_the_documented_bytes",
    19: "test_records.test_a_failed_condition_is_412_with_one_key",
    20: "test_records.test_a_read_that_may_wait_at_the_tail_waits_in_vain",
    21: "test_events.test_a_stream_goes_on_behind_the_last_event",
    22: "test_events.test_a_ping_is_the_documented_bytes",
    23: "test_events.test_a_bounded_stream_is_the_documented_bytes",
    24: "test_dialects.test_a_batch_of_history_has_no_tail",
    25: "test_time.test_events_are_pinged_alike",
    26: "test_dialects.test_a_bounded_session_without_a_wait_does_not_wait",
    27: "test_append_sessions.test_the_first_ack_of_a_stream_is_the_documented_bytes",
    28: "(how records are stored is not on the wire)",
    29: "test_time.test_what_has_expired_is_hidden_at_once_and_the_tail_stays",
    30: "test_dialects.test_metrics_carry_the_names_of_the_reference",
    31: "test_append_sessions.test_inputs_sent_without_waiting_are_acked_in_order",
    32: "test_errors.test_an_append_whose_outcome_is_unknown_is_an_error_that_promises_nothing",
    33: "test_read_sessions.test_history_comes_in_batches_as_large_as_allowed",
    34: "test_time.test_an_idle_session_lives_for_ever_by_a_heartbeat_every_5_to_15_seconds",
    35: "test_time.test_a_wait_is_a_budget_that_batches_renew_and_heartbeats_do_not",
    36: "test_dialects.test_older_names_and_values_of_basins_and_streams",
    37: "test_control.test_a_create_is_replayed_for_the_same_token_and_config_only",
}


def is_there(name: str) -> bool:
    """Whether the test exists, in a module whose fixtures run it over both versions."""
    module, _, function = name.rpartition(".")
    tree = ast.parse((HERE / f"{module}.py").read_text())
    return any(isinstance(node, ast.FunctionDef) and node.name == function for node in tree.body)


def test_every_error_of_the_table_is_ours_and_has_a_test_or_a_reason() -> None:
    assert {row.code: row.status for row in ERRORS} == STATUS
    assert all(bool(row.tests) is not bool(row.never) for row in ERRORS)
    named = [name for row in ERRORS for name in row.tests]
    assert [name for name in (*named, *CODELESS.values()) if not is_there(name)] == []


def test_every_difference_of_the_table_has_a_test_or_a_reason() -> None:
    assert sorted(DIFFERENCES) == list(range(1, 38))
    named = [name for name in DIFFERENCES.values() if not name.startswith("(")]
    assert [name for name in named if not is_there(name)] == []


@pytest.fixture(scope="module")
def own() -> Iterator[Server]:
    """A server of which a part is replaced."""
    with Server(cors=False) as running:
        yield running


@pytest.mark.parametrize("row", ERRORS, ids=lambda row: row.code)
def test_every_error_has_its_status_headers_and_body(
    own: Server, version: str, client_thread: LoopThread, row: Row
) -> None:
    raised = type("Raised", (BournError,), {"code": row.code})

    def refuse(*_: object) -> None:
        raise raised('why "not"')

    own.node.check_tail = refuse  # type: ignore[assignment, method-assign]  # on purpose
    own.node.tail_now = refuse  # type: ignore[assignment, method-assign]  # the same the quick way
    with Connected(version, own.port, client_thread) as connected:
        reply = Api(connected.client, BASIN).get("/v1/streams/s/records/tail")
    body = f'{{"code":"{row.code}","message":"why \\"not\\""}}'.encode()
    assert (reply.status, reply.body) == (row.status, body)
    headers = {"content-type": "application/json", "content-length": str(len(body))}
    if row.status == 401:
        headers["www-authenticate"] = "Bearer"
    assert reply.named == headers
