"""The audit log: who did what, who was refused, and never a secret."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest

from bourn.clock import ManualClock
from bourn.http import audit
from bourn.limits import AUDIT_REFUSALS_MAX, AUDIT_WINDOW_SECS
from bourn.model.access import Op
from tests.http.access import ROOT, TOKENS, TokenApi, exact, prefix
from tests.http.clients import SESSION, Api, Connected
from tests.http.conftest import BASIN
from tests.http.frames import Frames
from tests.http.server import LoopThread, Server
from tests.http.test_token_sessions import FENCE, records

STREAMS = "/v1/streams"
MEMBERS = [
    "time",
    "event",
    "principal",
    "op",
    "basin",
    "stream",
    "token",
    "status",
    "code",
    "client",
]


class Lines(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())

    def take(self) -> list[dict[str, Any]]:
        """All lines since the last time, without their times."""
        texts, self.texts = self.texts, []
        assert not any("\n" in text for text in texts)
        return [json.loads(text) for text in texts]

    def about(self) -> list[tuple[Any, ...]]:
        """The same in few words."""
        found = self.take()
        assert all(list(line) == MEMBERS for line in found)
        return [
            (line["event"], line["principal"], line["op"], line["status"], line["code"])
            for line in found
        ]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    level = audit.log.level
    audit.log.addHandler(handler)
    audit.log.setLevel(logging.INFO)
    yield handler
    audit.log.removeHandler(handler)
    audit.log.setLevel(level)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(cors=False, root_token=ROOT) as running:
        yield running


@pytest.fixture
def root(server: Server, client_thread: LoopThread, lines: Lines) -> Iterator[TokenApi]:
    with Connected("h1", server.port, client_thread) as connected:
        api = TokenApi(connected.client, BASIN, ROOT)
        assert api.put(f"/v1/basins/{BASIN}").status in {200, 201}
        lines.take()
        yield api


def test_what_changes_something_is_noted_with_what_it_is_about(
    root: TokenApi, lines: Lines
) -> None:
    assert root.put(f"{STREAMS}/noted").status == 201
    (line,) = lines.take()
    assert list(line) == MEMBERS
    assert re.fullmatch(r"127\.0\.0\.1:[0-9]+", line["client"])
    assert re.fullmatch(r"2[0-9]{3}-.*Z", line["time"])
    assert line | {"time": "", "client": ""} == {
        "time": "",
        "event": "control",
        "principal": "root",
        "op": "create-stream",
        "basin": BASIN,
        "stream": "noted",
        "token": "",
        "status": 201,
        "code": "",
        "client": "",
    }
    root.post(TOKENS, {"id": "t", "scope": {"ops": ["read"]}})
    (line,) = lines.take()
    assert (line["op"], line["token"], line["status"]) == ("issue-access-token", "t", 201)


def test_reads_and_appends_are_not_noted(root: TokenApi, lines: Lines) -> None:
    root.put(f"{STREAMS}/quiet")
    lines.take()
    root.append("quiet", "x")
    root.get(f"{STREAMS}/quiet/records?seq_num=0")
    root.get(f"{STREAMS}/quiet")
    root.get("/v1/basins")
    root.get(TOKENS)
    assert lines.take() == []


def test_what_fails_is_noted_with_its_code(root: TokenApi, lines: Lines) -> None:
    root.delete(f"{STREAMS}/missing")
    root.post("/v1/basins", {"basin": BASIN})
    root.post("/v1/basins", b"{")
    root.delete(f"{TOKENS}/missing")
    assert lines.about() == [
        ("control", "root", "delete-stream", 404, "stream_not_found"),
        ("control", "root", "create-basin", 409, "resource_already_exists"),
        ("control", "root", "create-basin", 400, "bad_json"),
        ("control", "root", "revoke-access-token", 404, "access_token_not_found"),
    ]


def test_what_is_refused_is_noted_once(root: TokenApi, lines: Lines) -> None:
    scope = {
        "basins": exact(BASIN),
        "streams": prefix("a"),
        "ops": ["append", "issue-access-token"],
    }
    user = root.issue("narrow", **scope, access_tokens=prefix("n-"))
    lines.take()
    Api(root.client, BASIN).get("/v1/basins")
    root.with_token("wrong").get("/v1/basins")
    user.get("/v1/basins")
    user.append("b", "x")
    user.delete(f"/v1/basins/{BASIN}")
    user.post(TOKENS, {"id": "n-1", "scope": {"ops": ["read"]}})
    assert lines.about() == [
        ("refused", "", "list-basins", 401, "authn"),
        ("refused", "", "list-basins", 401, "authn"),
        ("refused", "narrow", "list-basins", 403, "permission_denied"),
        ("refused", "narrow", "append", 403, "permission_denied"),
        ("refused", "narrow", "delete-basin", 403, "permission_denied"),
        ("control", "narrow", "issue-access-token", 403, "permission_denied"),
    ]


def test_what_is_refused_inside_a_session_is_noted(root: TokenApi, lines: Lines) -> None:
    assert root.put(f"{STREAMS}/inside").status == 201
    scope = {"basins": exact(BASIN), "streams": prefix(""), "ops": ["append"]}
    user = root.issue("appender", **scope)
    lines.take()
    call = user.open("POST", f"{STREAMS}/inside/records", SESSION)
    call.send(records(FENCE))
    assert Frames(call).take().code == (403, "permission_denied")
    assert lines.about() == [("refused", "appender", "fence", 403, "permission_denied")]


def test_no_secret_is_ever_noted(root: TokenApi, lines: Lines) -> None:
    secret = root.issued("kept-secret", {"ops": ["list-basins"]})
    user = root.with_token(secret)
    user.get("/v1/basins")
    user.put(f"/v1/basins/{BASIN}")
    root.delete(f"{TOKENS}/kept-secret")
    user.get("/v1/basins")
    root.with_token("guessed-secret").get("/v1/basins")
    text = "\n".join(lines.texts)
    assert text
    for hidden in (secret, secret[6:], ROOT, "guessed-secret", "Bearer"):
        assert hidden not in text


def test_a_flood_of_refusals_is_counted_and_what_is_done_is_never_left_out(lines: Lines) -> None:
    clock = ManualClock()

    async def main() -> None:
        log = audit.Audit(clock)
        for _ in range(AUDIT_REFUSALS_MAX + 50):
            log.refused(Op.READ, 401, "authn")
        for _ in range(5):
            log.failed(Op.CREATE_BASIN, 409, "resource_already_exists")
            log.done(Op.CREATE_BASIN, 201)
        clock.advance(AUDIT_WINDOW_SECS)
        await clock.sleep(0)
        await clock.sleep(0)
        log.refused(Op.READ, 401, "authn")

    asyncio.run(main())
    found = lines.take()
    assert [line["event"] for line in found] == [
        *["refused"] * AUDIT_REFUSALS_MAX,
        *["control"] * 5,
        "left-out",
        "refused",
    ]
    assert found[-2]["count"] == 55


def test_nothing_is_worked_out_while_nobody_listens(root: TokenApi, lines: Lines) -> None:
    audit.log.setLevel(logging.CRITICAL)
    root.with_token("wrong").get("/v1/basins")
    root.put(f"{STREAMS}/unheard")
    assert lines.take() == []
