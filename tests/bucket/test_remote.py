"""What the network adds to the contract: failures told apart, nothing secret told, one request."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import unquote

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.port import Bucket, Data
from bourn.bucket.remote import RemoteBucket, require_create_only
from bourn.bucket.stores import RemoteOptions, _is_whole_on_the_way, open_azure, open_gcs, open_s3
from bourn.errors import (
    BucketError,
    BucketRefused,
    BucketUnavailable,
    ObjectExists,
    ObjectMissing,
)
from bourn.limits import MIB
from tests.bucket.conftest import S3_BUCKET, options_of
from tests.s3server import S3Server

KEY, SECRET, TOKEN = "AKIAWATCHWORD", "a-secret-watchword", "a-token-watchword"


class Request(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body_bytes: int


class Reply(NamedTuple):
    status: int
    body: str = ""
    headers: tuple[tuple[str, str], ...] = ()


@contextmanager
def scripted(answer: Callable[[Request], Reply]) -> Iterator[tuple[str, list[Request]]]:
    """Run an HTTP server that answers as told, and notes what it was asked."""
    seen: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            length = int(self.headers.get("content-length", 0))
            size = len(self.rfile.read(length))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen.append(Request(self.command, self.path, headers, size))
            reply = answer(seen[-1])
            self.send_response(reply.status)
            for header in reply.headers:
                self.send_header(*header)
            self.send_header("content-length", str(len(reply.body.encode())))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body.encode())

        do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = handle_any  # noqa: N815  http.server's

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def s3_at(endpoint: str, **changes: float | str) -> RemoteBucket:
    options = {"retries": 0, "region": "us-east-1", "access_key_id": KEY} | changes
    return open_s3(
        "bucket",
        "pre/fix",
        RemoteOptions(
            endpoint=endpoint,
            secret_access_key=SECRET,
            session_token=TOKEN,
            **options,  # type: ignore[arg-type]  # of the kinds that the fields have
        ),
    )


def failure_of(bucket: Bucket, method: str, *arguments: object) -> BucketError:
    async def scenario() -> None:
        if method == "list":
            [_ async for _ in bucket.list("")]
        else:
            await getattr(bucket, method)("key", *arguments)

    with pytest.raises(BucketError) as caught:
        asyncio.run(scenario())
    # A traceback would show the store's own text.
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    for secret in (KEY, SECRET, TOKEN):
        assert secret not in str(caught.value)
    assert "\n" not in str(caught.value)
    return caught.value


Call = tuple[Any, ...]
CALLS: list[Call] = [
    ("put_if_absent", b"1"),
    ("put", b"1"),
    ("get",),
    ("get_range", 0, 5),
    ("get_range", 0, 0),
    ("list",),
    ("delete",),
]


@pytest.mark.parametrize("call", CALLS, ids=str)
@pytest.mark.parametrize(
    ("status", "code", "expected", "words"),
    [
        (500, "InternalError", BucketUnavailable, "failed"),
        (503, "SlowDown", BucketUnavailable, "failed"),
        (429, "TooManyRequests", BucketUnavailable, "failed"),
        (408, "RequestTimeout", BucketUnavailable, "failed"),
        (403, "SignatureDoesNotMatch", BucketRefused, "check the credentials"),
        (401, "Unauthorized", BucketRefused, "check the credentials"),
        (400, "ExpiredToken", BucketRefused, "check endpoint, region and credentials"),
        (404, "NoSuchBucket", BucketRefused, "create the bucket"),
        (301, "PermanentRedirect", BucketRefused, "AWS_REGION"),
        (501, "NotImplemented", BucketRefused, "use another store"),
    ],
)
def test_a_failure_says_whether_it_may_pass_and_shows_no_secret(
    call: Call, status: int, code: str, expected: type[BucketError], words: str
) -> None:
    body = f"<Error><Code>{code}</Code><Key>{KEY} {SECRET} {TOKEN}</Key></Error>"
    with scripted(lambda request: Reply(status, body)) as (endpoint, _):
        error = failure_of(s3_at(endpoint), *call)
    if call == ("get_range", 0, 0) and status == 404:
        assert isinstance(error, ObjectMissing)  # a HEAD has no body to tell the two apart
        return
    assert type(error) is expected
    assert words in error.message


@pytest.mark.parametrize("call", CALLS, ids=str)
def test_a_server_that_is_not_there_may_come_back(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    error = failure_of(s3_at(f"http://127.0.0.1:{port}"), *call)
    assert type(error) is BucketUnavailable
    assert "cannot be reached" in error.message


@pytest.mark.parametrize("call", [("put_if_absent", b"1"), ("get",), ("list",)], ids=str)
def test_a_server_that_never_answers_is_given_up(call: Call) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        error = failure_of(s3_at(endpoint, request_timeout_secs=0.2), *call)
    assert type(error) is BucketUnavailable
    assert "did not answer in time" in error.message


def test_an_answer_cut_short_is_never_taken_for_the_object() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(
                    b'HTTP/1.1 200 OK\r\ncontent-length: 100\r\netag: "x"\r\n'
                    b"last-modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\r\nonly this much"
                )

        thread = threading.Thread(target=serve)
        thread.start()
        bucket = s3_at(f"http://127.0.0.1:{server.getsockname()[1]}", request_timeout_secs=5)
        error = failure_of(bucket, "get")
        thread.join()
    assert type(error) is BucketUnavailable


@pytest.mark.parametrize("method", ["put_if_absent", "put"])
def test_a_large_put_is_one_request_with_an_unsigned_payload_on_loopback(method: str) -> None:
    with scripted(lambda request: Reply(200, "", (("etag", '"x"'),))) as (endpoint, seen):
        asyncio.run(getattr(s3_at(endpoint), method)("dir/key", bytes(12 * MIB)))
    (request,) = seen
    assert (request.method, request.path) == ("PUT", "/bucket/pre/fix/dir/key")
    assert request.body_bytes == 12 * MIB
    assert request.headers.get("if-none-match") == ("*" if method == "put_if_absent" else None)
    assert request.headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
    assert request.headers["x-amz-security-token"] == TOKEN


@pytest.mark.parametrize(
    ("endpoint", "whole"),
    [
        ("", True),
        ("https://s3.example.com", True),
        ("http://localhost:9000", True),
        ("http://127.0.0.1:9000", True),
        ("http://[::1]:9000", True),
        ("http://minio.internal:9000", False),
        ("http://10.0.0.7:9000", False),
    ],
)
def test_payloads_are_signed_where_nothing_else_protects_them(endpoint: str, whole: bool) -> None:
    assert _is_whole_on_the_way(endpoint) is whole


@pytest.mark.parametrize("status", [409, 412])
def test_a_conflict_without_an_object_is_not_taken_for_an_existing_object(status: int) -> None:
    def answer(request: Request) -> Reply:
        body = "<Error><Code>ConditionalRequestConflict</Code></Error>"
        return Reply(404) if request.method == "HEAD" else Reply(status, body)

    with scripted(answer) as (endpoint, _):
        error = failure_of(s3_at(endpoint), "put_if_absent", b"1")
    assert type(error) is BucketUnavailable
    assert f"{status} ConditionalRequestConflict" in error.message


def test_failed_requests_are_tried_again_a_few_times_only() -> None:
    for retries in (0, 2):
        with scripted(lambda request: Reply(503)) as (endpoint, seen):
            failure_of(s3_at(endpoint, retries=retries), "get")
        assert len(seen) == 1 + retries


def test_a_store_that_lists_out_of_order_is_refused() -> None:
    entry = (
        "<Contents><Key>pre/fix/{}</Key><Size>1</Size><ETag>x</ETag>"
        "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
    )
    body = f"<ListBucketResult>{entry.format('b')}{entry.format('a')}</ListBucketResult>"
    with scripted(lambda request: Reply(200, body)) as (endpoint, _):
        error = failure_of(s3_at(endpoint), "list")
    assert type(error) is BucketRefused
    assert "out of order" in error.message


def test_prefixes_keep_buckets_apart_and_foreign_names_are_skipped(moto: S3Server) -> None:
    async def scenario() -> None:
        one, other, whole = (
            open_s3(S3_BUCKET, prefix, options_of(moto)) for prefix in ("p/one", "p/one-more", "p")
        )
        await one.put_if_absent("k/1", b"1")
        await other.put_if_absent("k/1", b"2")
        await one._store.put_async("p/one/k/not a key", b"")
        await one._store.put_async("p/one/k/~", b"")
        assert [info.key async for info in one.list("")] == ["k/1"]
        assert [info.key async for info in one.list("k/")] == ["k/1"]
        assert await other.get("k/1") == b"2"
        assert await whole.get("one/k/1") == b"1"
        assert [info.key async for info in whole.list("")] == ["one-more/k/1", "one/k/1"]

    asyncio.run(scenario())


def test_wrong_keys_are_refused_by_a_server_that_checks_them(versity: S3Server) -> None:
    wrong = options_of(versity._replace(secret_access_key=SECRET))
    for call in CALLS:
        error = failure_of(open_s3(S3_BUCKET, "", wrong), *call)
        assert type(error) is BucketRefused
        assert "check the credentials" in error.message


def test_a_token_in_the_environment_does_not_join_explicit_keys(
    versity: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of another account")
    options = options_of(versity).with_environment({"AWS_SESSION_TOKEN": "of another account"})
    bucket = open_s3(S3_BUCKET, "token", options)
    asyncio.run(bucket.put("key", b"1"))
    assert asyncio.run(bucket.get("key")) == b"1"


class Overwriting(MemoryBucket):
    """A store that does not know conditions."""

    async def put_if_absent(self, key: str, data: Data) -> None:
        await self.put(key, data)


def test_a_store_that_ignores_create_only_puts_is_found_out(moto: S3Server) -> None:
    async def scenario() -> None:
        with pytest.raises(BucketRefused, match="ignores create-only puts"):
            await require_create_only(Overwriting(), "probe")
        for bucket in (MemoryBucket(), open_s3(S3_BUCKET, "probe", options_of(moto))):
            await require_create_only(bucket, "probe")
            await require_create_only(bucket, "probe")

    asyncio.run(scenario())


def test_gcs_creates_on_condition_of_generation_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    account = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(account | {"gcs_base_url": ""}))
    exists = False

    def answer(request: Request) -> Reply:
        if request.method == "PUT" and exists:
            return Reply(412)
        described = (("etag", "x"), ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"))
        return Reply(200, "", described)

    with scripted(answer) as (endpoint, seen):
        bucket = open_gcs("bucket", "pre", RemoteOptions(endpoint=endpoint, retries=0))
        asyncio.run(bucket.put_if_absent("key", b"12345"))
        assert seen[0].headers["x-goog-if-generation-match"] == "0"
        assert unquote(seen[0].path) == "/bucket/pre/key"
        exists = True
        assert type(failure_of(bucket, "put_if_absent", b"1")) is ObjectExists


def test_azure_creates_on_condition_of_no_match(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_SKIP_SIGNATURE", "true")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    exists = False

    def answer(request: Request) -> Reply:
        if request.method == "PUT" and exists:
            return Reply(409, "<Error><Code>BlobAlreadyExists</Code></Error>")
        described = (("etag", "x"), ("last-modified", "Sun, 06 Nov 1994 08:49:37 GMT"))
        return Reply(201 if request.method == "PUT" else 200, "", described)

    with scripted(answer) as (endpoint, seen):
        bucket = open_azure("container", "", RemoteOptions(endpoint=endpoint, retries=0))
        asyncio.run(bucket.put_if_absent("key", b"12345"))
        assert seen[0].headers["if-none-match"] == "*"
        exists = True
        assert type(failure_of(bucket, "put_if_absent", b"1")) is ObjectExists


def test_options_do_not_show_their_secrets() -> None:
    options = RemoteOptions(access_key_id=KEY, secret_access_key=SECRET, session_token=TOKEN)
    for shown in (repr(options), str(options), f"{options}"):
        assert not any(secret in shown for secret in (KEY, SECRET, TOKEN))
