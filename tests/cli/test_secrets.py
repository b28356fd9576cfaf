"""What a server and its clients leave behind holds no token, no key and no plaintext.

A process with tokens on serves a broad workload, is killed, stopped, started again and lied to by
its disk. Then all that it said and stored is searched for every secret.
"""

import base64
import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bourn.catalog.tokens import digest_of
from bourn.clock import SystemClock
from bourn.model.instants import format_ms
from tests.cli.evidence import CIPHERS, STREAM, Case, Heard, User, basin_of, content, leaks, run
from tests.cli.process import SECS_MAX, Serving
from tests.http.access import EVERYTHING, TOKENS, exact, prefix
from tests.http.clients import EVENTS, PROTO, SESSION, head_of, reply_of
from tests.http.frames import Frames, append, frame, message
from tests.http.server import eventually

PLAIN = "plain-basin"
RECORDS = f"/v1/streams/{STREAM}/records"
FORMS: list[dict[str, str]] = [{}, {"s2-format": "base64"}, PROTO, SESSION, EVENTS]


# What is done


def batch(case: Case, **more: Any) -> bytes:
    """A batch of JSON that is all secret."""
    record = {"body": case.secrets["body"], "headers": [["h", case.secrets["header"]]], **more}
    return json.dumps({"records": [record]}).encode()


def use_tokens(root: User) -> list[User]:
    """Issue tokens, use them where they may and may not, and let them end."""
    may = {"basins": exact(PLAIN), "streams": prefix("st"), "ops": ["append", "read"]}
    all_may = root.with_token(root.issued("everything", EVERYTHING))
    user = root.with_token(root.issued("user", may))
    revoked = root.with_token(root.issued("revoked", may))
    brief_end = format_ms(SystemClock().now_ms() + 1500)
    brief = root.with_token(root.issued("brief", may, expires_at=brief_end))
    for api in (user, revoked):
        assert api.append(STREAM, "by a token").status == 200
        assert api.get(f"{RECORDS}?seq_num=0").status == 200
        assert api.put("/v1/streams/other").status == 403
        assert api.of("other-basin").append(STREAM, "no").status == 403
        assert api.post(TOKENS, {"id": "more", "scope": EVERYTHING}).status == 403
    frames = Frames(revoked.open("GET", f"{RECORDS}?seq_num=0", SESSION, body=b""))
    assert root.delete(f"{TOKENS}/revoked").status == 204
    assert frames.rest()[-1].code == (401, "authn")
    revoked.client.close()
    assert revoked.append(STREAM, "too late").status == 401
    eventually(lambda: brief.append(STREAM, "until it ends").status == 401)
    assert all_may.get(f"{TOKENS}?prefix=").status == 200
    assert root.post(TOKENS, {"id": "user", "scope": may}).status == 409
    assert root.post(TOKENS, {"id": "none", "scope": {}}).status == 422
    return [all_may, user, revoked, brief]


def misuse_tokens(root: User, users: list[User]) -> None:
    """Tokens that are unknown, cut, or in no proper form."""
    unknown = root.case.secrets["unknown token"]
    texts = [unknown, *(user.token for user in [root, *users])]
    for text in texts:
        twisted = [text[:-1], text + "x", text + " more", f" {text}", text.upper(), f'"{text}"']
        for header in [*(f"Bearer {t}" for t in twisted), text, f"Basic {text}", f"Token={text}"]:
            headers = [("authorization", header), *root.case.with_key().items()]
            for path in ("/v1/basins", f"{RECORDS}?seq_num=0"):
                client = Heard(root.port, root.case)
                reply = reply_of(client.begin("GET", path, [*headers, ("s2-basin", PLAIN)]))
                root.case.note("answers", reply.body)
                assert reply.status in {200, 401, 403}, reply
                client.close()
        secret = f"authorization: Bearer {text}\r\ns2-encryption-key: {root.case.key()}\r\n"
        broken = [
            f"GET /v1/basins HTTP/1.1\r\nhost: x\r\n{secret}{more}"
            for more in (
                "\r\n",
                "bad name: x\r\n\r\n",
                "content-length: x\r\n\r\n",
                "",
                f": {text}\r\n\r\n",
                "a: " + "a" * 200_000,
                f"s2-basin: \x00{text}\r\n\r\n",
            )
        ]
        root.lies(
            *(head.encode("latin-1") for head in broken),
            secret.encode(),
            b"GET " + secret.encode(),
            head_of("GET", "/v1/basins", [("authorization", f"Bearer \xe9{text}".encode())]),
        )


def write_and_read_sealed(root: User, cipher: str) -> None:
    """Every form of appending and reading, with the key, without it, and with what is none."""
    case, api = root.case, root.of(basin_of(cipher))
    body, header = (case.secrets[name].encode() for name in ("body", "header"))
    form = {"content-type": "application/json"}
    encoded = base64.b64encode(body).decode()
    in_base64 = json.dumps({"records": [{"body": encoded}]}).encode()
    right = [
        (form, batch(case)),
        (form | {"s2-format": "base64"}, in_base64),
        (PROTO, message(body)),
        (SESSION, append(body) + append(header, body)),
    ]
    for headers, data in right:
        assert api.request("POST", RECORDS, headers, data).status == 400
        assert api.request("POST", RECORDS, case.with_key(more=headers), data).status == 200
    refused = [
        (form, batch(case)[:-1], 400),
        (form, batch(case, timestamp="no number"), 400),
        (form | {"s2-format": "base64"}, batch(case), 422),
        (form | {"s2-format": case.secrets["body"]}, batch(case), 400),
        (form, json.dumps({"records": [{"headers": [["", case.secrets["body"]]]}]}).encode(), 422),
        (form, json.dumps({"records": [], "fencing_token": "x"}).encode(), 422),
        (form, batch(case)[:-1] + b', "match_seq_num": 77}', 412),
        (PROTO, b"\xff" + message(body), 400),
        (PROTO, message(body, fencing_token="another"), 412),
        (SESSION, frame(b"\xff" + body), 200),
        (SESSION, append(body) + body, 200),
        (SESSION, append(body, match_seq_num=77), 200),
        ({"content-type": "text/plain"}, body, 400),
    ]
    for headers, data, status in refused:
        reply = api.request("POST", RECORDS, case.with_key(more=headers), data)
        assert reply.status == status, reply
    key = case.key()
    no_keys = [key[:-1], key[1:], key[:40], key + "=", key + key, f"{key[:-2]}*=", key[::-1]]
    for headers in FORMS:
        path = f"{RECORDS}?seq_num=0&count=3"
        reply = api.owned("GET", path, case.with_key(more=headers))
        assert reply.status == 200
        wrong = api.request("GET", path, case.with_key("wrong key", headers))
        assert b"record decryption failed" in wrong.body
        for text in no_keys:
            bad = dict(headers) | {"s2-encryption-key": text}
            assert api.request("GET", path, bad).status == 400, text
            bad = form | {"s2-encryption-key": text}
            assert api.request("POST", RECORDS, bad, batch(case)).status == 400
        assert api.request("GET", path, headers).status == 400
    assert api.request("POST", RECORDS, case.with_key("wrong key", form), batch(case)).status == 200
    for text in ("-".join(key[i : i + 11] for i in (0, 11, 22)), "\u00e9" + key[:40]):
        api.request("GET", RECORDS, [("s2-encryption-key", text.encode("latin-1"))])


def ask_everything_else(root: User) -> None:
    """Listings, configurations, metrics, and refusals of every kind."""
    now_s = SystemClock().now_ms() // 1000
    span = f"start={now_s - 7200}&end={now_s}"
    sealed = basin_of(CIPHERS[0])
    paths = ["/health", "/metrics", "/openapi.json", "/v1/basins", "/v1/streams", TOKENS]
    paths += ["/v1/locations", "/nothing", "/v1/basins/NO", "/v1/streams/none", f"{RECORDS}/tail"]
    paths += [f"/v1/basins/{sealed}", f"/v1/streams/{STREAM}", f"{RECORDS}?seq_num=99999"]
    paths += [f"{RECORDS}?seq_num=x", f"{RECORDS}?count=-1", "/v1/basins?limit=x", "/v1/%zz"]
    paths += [f"/v1/metrics?set=account-ops&interval=hour&{span}", "/v1/metrics?set=none"]
    paths += [f"/v1/metrics/{sealed}?set=append-ops&interval=minute&{span}"]
    paths += [f"/v1/metrics/{sealed}/{STREAM}?set=storage&interval=minute&{span}"]
    form = {"content-type": "application/json"}
    for api in (root.of(sealed), root.of(None), root.of("absent-basin"), root.of("X")):
        for method in ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"):
            for path in paths:
                if method != "DELETE" or "none" in path or "NO" in path:
                    headers = root.case.with_key(more=form)
                    api.request(method, path, headers, b'{"what' if "P" in method else b"")


def use_commands(case: Case, server: Serving, cipher: str) -> None:
    """The same by the command line."""
    place = f"s2://{basin_of(cipher)}/{STREAM}"
    root, token_id = case.secrets["root token"], f"by {cipher}"
    files = [case.path / f"{key}.key" for key in case.keys]
    for file in files:
        file.write_text(case.key(file.stem))
    right, wrong = (("--encryption-key-file", str(file)) for file in files)
    scope = ("--ops", "read", "--basins", "", "--streams", "")
    (reader,) = run(case, server, root, "token", "issue", token_id, *scope, is_known=True).lines
    case.secrets[f"token {token_id}"] = reader
    assert run(case, server, root, "append", place, *right).code == 0
    assert run(case, server, reader, "read", place, "--count", "1", *right, is_known=True).code == 0
    assert run(case, server, reader, "read", place, "--count", "1", *wrong).code == 1
    assert run(case, server, reader, "append", place, *right).code == 1
    assert run(case, server, reader[:-1], "read", place, *right).code == 1
    assert run(case, server, root, "append", place).code == 1
    for file in files:
        file.unlink()


def damage(objects: list[Path]) -> None:
    """Flip a bit of the last entry of every commit."""
    for path in objects:
        if path.parent.parent.name == "wal":
            data = bytearray(path.read_bytes())
            index_at = int.from_bytes(data[-32:-24], "little")  # layout/commit.py draws it
            data[index_at - 9] ^= 1
            path.write_bytes(data)


def work(case: Case) -> None:
    """Two starts that serve everything; the first ends by a kill, the second in good order."""
    users: list[User] = []
    for name in ("root token", "later root token"):
        with Serving(*case.flags(name)) as server:
            root = User(server.port, case, PLAIN, case.secrets[name])
            if not users:
                assert root.put(f"/v1/basins/{PLAIN}").status == 201
                assert root.put(f"/v1/streams/{STREAM}").status == 201
                users = use_tokens(root)
                misuse_tokens(root, users)
                for cipher in CIPHERS:
                    made = {"stream_cipher": cipher, "create_stream_on_append": True}
                    document = {"basin": basin_of(cipher), "config": made}
                    assert root.post("/v1/basins", document).status == 201
                    use_commands(case, server, cipher)
            else:
                everything, user, revoked, brief = (root.with_token(old.token) for old in users)
                assert user.append(STREAM, "by a token that was kept").status == 200
                assert everything.get("/v1/basins").status == 200
                assert all(old.append(STREAM, "").status == 401 for old in (revoked, brief))
            misuse_tokens(root, [])
            for cipher in CIPHERS:
                write_and_read_sealed(root, cipher)
            ask_everything_else(root)
            written = case.objects()
            if name == "root token":
                server.send(signal.SIGKILL)
                server.child.wait(SECS_MAX)
            else:
                assert server.stop() == 0
            case.note_output(server)
    case.note_objects()
    damage(written)


def fail(case: Case) -> None:
    """A third start, on commits that are not what was written."""
    with Serving(*case.flags("later root token")) as server:
        root = User(server.port, case, PLAIN, case.secrets["later root token"])
        for cipher in CIPHERS:
            for headers in FORMS:
                path = f"{RECORDS}?seq_num=0&count=3"
                reply = root.of(basin_of(cipher)).request("GET", path, case.with_key(more=headers))
                assert b"is damaged" in reply.body
        assert server.stop() == 0
        case.note_output(server)
    case.note_objects()


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """All of it, done once."""
    done = Case(tmp_path_factory.mktemp("secrets"))
    work(done)
    fail(done)
    done.note("audit log", (done.path / "audit.log").read_bytes())
    return done


@pytest.mark.slow
def test_nothing_that_is_said_or_stored_holds_a_secret(case: Case) -> None:
    assert leaks({place: bytes(data) for place, data in case.said.items()}, case.hidden()) == []


@pytest.mark.slow
def test_the_search_sees_what_is_there(case: Case) -> None:
    """What has to be found is found, so what is not found is not there."""
    said = {place: bytes(data) for place, data in case.said.items()}
    assert set(said) == {
        "answers",
        "audit log",
        "heads of answers",
        "objects",
        "standard error",
        "standard output",
        "what commands printed",
        "what commands said",
        "what connections heard",
    }
    for name in ("root token", "later root token", "token user", "token everything"):
        assert digest_of(case.secrets[name].encode()) in said["objects"], name
    assert b"by a token" in said["objects"]
    assert b"by a token" in said["answers"]
    for event, who in (("control", "root"), ("refused", "user"), ("refused", "")):
        line = f'"event":"{event}","principal":"{who}"'
        assert line.encode() in said["audit log"], line
    assert len(case.stream_ids) == 1 + len(CIPHERS)
    hidden = case.hidden()
    owned = {name: hidden[name] for name in case.secrets if name.startswith("token ")}
    owned |= {name: hidden[name] for name in ("body", "header")}
    assert len(leaks({"shown": bytes(case.shown)}, owned)) == len(owned)


SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "a part": lambda secret: secret[5:28],
    "hex": lambda secret: secret.hex().encode(),
    "base64": base64.b64encode,
    "base64 behind one byte": lambda secret: base64.b64encode(b"x" + secret + b"yz"),
    "base64 behind two bytes": lambda secret: base64.b64encode(b"xy" + secret + b"z"),
    "base64 for addresses": lambda secret: base64.urlsafe_b64encode(b"abc" + secret),
    "address": lambda secret: quote(secret).encode(),
    "repr": lambda secret: repr({"key": secret}).encode(),
    "JSON": lambda secret: json.dumps({"key": secret.decode("latin-1")}).encode(),
    "numbers": lambda secret: json.dumps(list(secret)).encode(),
    "UTF-16": lambda secret: secret.decode("latin-1").encode("utf-16"),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_secret_is_found_in_every_spelling(spelling: str) -> None:
    for secret in (bytes(range(150, 182)), b"bourn_" + b"aB3-_~xyZ" * 4):
        said = {"log": b"before " + SPELLINGS[spelling](secret) + b" behind"}
        assert len(leaks(said, {"secret": secret})) == 1
        assert leaks(said, {"another": bytes(byte ^ 21 for byte in secret)}) == []


def test_a_secret_is_found_in_what_is_compressed(tmp_path: Path) -> None:
    secret = b"0123456701234567" * 4
    table = pa.table({"column": pa.array([secret] * 100)})
    path = tmp_path / "object.parquet"
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    assert leaks({"object": path.read_bytes()}, {"secret": secret}) == []
    assert len(leaks({"object": b"".join(content(path))}, {"secret": secret})) == 1
