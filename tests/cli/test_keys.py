"""`--encryption-key-file` and S2_ENCRYPTION_KEY, against a server in a process of its own."""

import base64
import hashlib
from itertools import count

import pytest

from tests.cli.process import Serving, bourn

KEY = base64.b64encode(hashlib.sha256(b"key").digest()).decode()
NUMBERS = count(1)


@pytest.fixture(scope="module")
def server():
    with Serving("--memory") as running:
        yield running


@pytest.fixture(params=["aegis-256", "aes-256-gcm"])
def stream(server, request):
    basin = f"sealed-basin-{next(NUMBERS)}"
    made = bourn(
        *("basin", "create", basin, "--cipher", request.param, "--create-stream-on-append"),
        variables=server_variables(server),
    )
    assert made.code == 0, made.err
    return f"s2://{basin}/stream"


def server_variables(server, **more):
    return {"S2_ACCOUNT_ENDPOINT": server.url, "S2_BASIN_ENDPOINT": server.url, **more}


def test_a_key_comes_out_of_a_file_or_the_variable(server, stream, tmp_path):
    file = tmp_path / "my.key"
    file.write_text(KEY + "\n")
    by_file = ("--encryption-key-file", str(file))
    plain = server_variables(server)
    known = server_variables(server, S2_ENCRYPTION_KEY=KEY)
    assert bourn("append", stream, *by_file, stdin=b"one\ntwo\n", variables=plain).code == 0
    assert bourn("append", stream, stdin=b"three\n", variables=known).code == 0
    assert bourn("read", stream, *by_file, variables=plain).lines == ["one", "two", "three"]
    assert bourn("tail", stream, "-n", "2", variables=known).lines == ["two", "three"]
    assert bourn("fence", stream, "token", *by_file, variables=plain).code == 0
    assert bourn("trim", stream, "1", variables=known).code == 0
    assert bourn("read", stream, "--count", "1", *by_file, variables=plain).lines == ["two"]


def test_the_file_counts_more_than_the_variable(server, stream, tmp_path):
    file = tmp_path / "my.key"
    file.write_text(KEY)
    other = base64.b64encode(bytes(32)).decode()
    variables = server_variables(server, S2_ENCRYPTION_KEY=other)
    by_file = ("--encryption-key-file", str(file))
    assert bourn("append", stream, *by_file, stdin=b"one\n", variables=variables).code == 0
    assert bourn("read", stream, *by_file, variables=variables).lines == ["one"]
    wrong = bourn("read", stream, variables=variables)
    assert (wrong.code, wrong.out) == (1, b"")
    assert "record decryption failed" in wrong.err


def test_no_key_is_refused_by_the_server(server, stream):
    refused = bourn("append", stream, stdin=b"one\n", variables=server_variables(server))
    assert refused.code == 1
    assert "missing encryption key for stream cipher" in refused.err


@pytest.mark.parametrize("text", ["", "two words", "é" * 22, "A" * 45, " \n", "A\nB"])
def test_what_can_be_no_key_is_not_sent_nor_repeated(server, tmp_path, text):
    file = tmp_path / "my.key"
    file.write_text(text, encoding="utf-8")
    ended = bourn(
        *("read", "s2://my-basin/stream", "--encryption-key-file", str(file)),
        variables=server_variables(server),
    )
    assert ended.code == 2
    assert ended.err.strip().endswith(
        "my.key holds no key: write 32 bytes as base64, 44 characters"
    )


def test_a_key_file_that_is_missing_is_named(server, tmp_path):
    ended = bourn(
        *("read", "s2://my-basin/stream", "--encryption-key-file", str(tmp_path / "none")),
        variables=server_variables(server),
    )
    assert ended.code == 2
    assert f"cannot read {tmp_path / 'none'}: No such file or directory" in ended.err


def test_a_variable_that_holds_no_key_is_named(server):
    ended = bourn(
        *("read", "s2://my-basin/stream"),
        variables=server_variables(server, S2_ENCRYPTION_KEY="A" * 50),
    )
    assert ended.code == 2
    assert "S2_ENCRYPTION_KEY holds no key" in ended.err
    assert "AAAA" not in ended.err
