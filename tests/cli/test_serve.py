"""A server as a process: how it starts, what it serves, how it stops."""

import http.client
import json
import signal
import socket
import ssl
import threading
import urllib.error
import urllib.request
from itertools import count

import pytest

from bourn.cli.tls import make_self_signed
from bourn.clock import SystemClock
from tests.cli.process import SECS_MAX, Serving, bourn
from tests.s3server import moto_server

BASIN = "my-basin"
SPEC = {
    "basins": [
        {
            "name": BASIN,
            "config": {"create_stream_on_append": True},
            "streams": [{"name": "events", "config": {"retention_policy": "infinite"}}],
        }
    ]
}


@pytest.fixture
def spec(tmp_path):
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(SPEC))
    return str(path)


def get(url, **headers):
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=SECS_MAX) as response:
        fields = {name.lower(): value for name, value in response.headers.items()}
        return response.status, fields, response.read()


def records_url(server, stream):
    return f"{server.url}/v1/streams/{stream}/records"


def append(server, stream, *bodies):
    body = json.dumps({"records": [{"body": text} for text in bodies]}).encode()
    headers = {"content-type": "application/json", "s2-basin": BASIN}
    request = urllib.request.Request(records_url(server, stream), body, headers)
    with urllib.request.urlopen(request, timeout=SECS_MAX) as response:
        assert response.status == 200


def records_of(server, stream):
    """Every record by its sequence number."""
    found: dict[int, str] = {}
    tail = json.loads(get(f"{records_url(server, stream)}/tail", **{"s2-basin": BASIN})[2])["tail"]
    while len(found) < tail["seq_num"]:
        url = f"{records_url(server, stream)}?seq_num={len(found)}"
        records = json.loads(get(url, **{"s2-basin": BASIN})[2])["records"]
        assert records, "a hole in the stream"
        found |= {record["seq_num"]: record["body"] for record in records}
    return found


def lines_of(stream, server):
    return list(records_of(server, stream).values())


def test_it_says_how_to_reach_it_and_that_it_is_ready_and_nothing_else():
    with Serving("--memory") as server:
        assert server.printed == [
            f'export S2_ACCOUNT_ENDPOINT="{server.url}"',
            f'export S2_BASIN_ENDPOINT="{server.url}"',
            'export S2_ACCESS_TOKEN="ignored"',
            f"bourn is ready on {server.url}, data in memory:",
        ]
        assert server.url == f"http://127.0.0.1:{server.port}"
        assert get(f"{server.url}/health")[::2] == (200, b"OK")
        exported = dict(line.removeprefix("export ").split("=") for line in server.printed[:3])
        variables = {name: value.strip('"') for name, value in exported.items()}
        assert bourn("basin", "create", BASIN, variables=variables).code == 0
        assert bourn("basin", "list", variables=variables).lines[1].startswith(BASIN)
        assert server.stop() == 0
        assert server.child.stdout is not None
        assert server.child.stdout.read() == ""


def test_settings_come_from_the_environment_and_the_file_and_flags_go_first(tmp_path):
    (tmp_path / "bourn.toml").write_text('bucket = "from-file"\nlocation = "moon:north"\n')
    variables = {"BOURN_PORT": "0", "BOURN_BUCKET": "from-variable"}
    with Serving("--path", "deep/er", cwd=tmp_path, port=None, variables=variables) as server:
        assert server.bucket == f"file://{tmp_path}/from-variable/deep/er"
        _, _, body = get(f"{server.url}/v1/locations/default")
        assert json.loads(body)["name"] == "moon:north"
    assert {path.name for path in tmp_path.iterdir()} == {"bourn.toml", "from-variable"}


def test_the_init_file_is_applied_before_it_is_ready_and_again_at_the_next_start(tmp_path, spec):
    flags = ("--bucket", str(tmp_path / "data"), "--init-file", spec)
    with Serving(*flags) as server:
        url = f"{server.url}/v1/streams/events"
        config = json.loads(get(url, **{"s2-basin": BASIN})[2])
        assert config["retention_policy"] == {"infinite": {}}
        assert "2 created, 0 updated, 0 unchanged" in server.errors()
        headers = {"content-type": "application/json", "s2-basin": BASIN}
        patch = urllib.request.Request(url, b'{"storage_class":"other"}', headers, method="PATCH")
        urllib.request.urlopen(patch, timeout=SECS_MAX).close()
        assert server.stop() == 0
    with Serving(*flags) as server:
        assert "0 created, 1 updated, 1 unchanged" in server.errors()


def test_what_was_appended_is_there_after_a_restart_and_after_a_kill(tmp_path, spec):
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags, "--init-file", spec) as server:
        append(server, "events", "one", "two")
        assert server.stop(signal.SIGINT) == 0
        assert "stopped; everything acknowledged is durable" in server.errors()
    with Serving(*flags) as server:
        assert lines_of("events", server) == ["one", "two"]
        append(server, "events", "three")
        server.send(signal.SIGKILL)
        server.child.wait(SECS_MAX)
    with Serving(*flags) as server:
        assert lines_of("events", server) == ["one", "two", "three"]


class Writer(threading.Thread):
    """Appends until the server does not want more; keeps what was acknowledged."""

    def __init__(self, port, number, enough):
        super().__init__(daemon=True)
        self.port, self.number, self.enough = port, number, enough
        self.acked = {}
        self.ended_by = None

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SECS_MAX)
        headers = {"content-type": "application/json", "s2-basin": BASIN}
        try:
            for turn in count():
                bodies = [f"{self.number}/{turn}/{n}" for n in range(5)]
                body = json.dumps({"records": [{"body": text} for text in bodies]})
                connection.request("POST", "/v1/streams/events/records", body, headers)
                response = connection.getresponse()
                answer = json.loads(response.read())
                if response.status != 200:
                    self.ended_by = answer["code"]
                    return
                for seq_num, text in enumerate(bodies, answer["start"]["seq_num"]):
                    self.acked[seq_num] = text
                if turn == 20:
                    self.enough.release()
        except (OSError, http.client.HTTPException) as error:
            self.ended_by = type(error).__name__
        finally:
            connection.close()


def test_a_stop_under_load_loses_nothing_that_was_acknowledged(tmp_path, spec):
    flags = ("--bucket", str(tmp_path / "data"), "--init-file", spec)
    enough = threading.Semaphore(0)
    with Serving(*flags) as server:
        writers = [Writer(server.port, number, enough) for number in range(8)]
        for writer in writers:
            writer.start()
        for _ in writers:
            assert enough.acquire(timeout=SECS_MAX)
        assert all(writer.is_alive() for writer in writers), "the stop must meet a load"
        assert server.stop() == 0
        for writer in writers:
            writer.join(SECS_MAX)
        assert "Traceback" not in server.errors()
    for writer in writers:
        assert writer.ended_by is not None
        assert writer.ended_by in {"server_draining", "unavailable"} or writer.ended_by[0].isupper()
    acked = {seq_num: text for writer in writers for seq_num, text in writer.acked.items()}
    assert len(acked) == sum(len(writer.acked) for writer in writers), "a position given twice"
    with Serving(*flags) as server:
        there = records_of(server, "events")
    assert {seq_num: there.get(seq_num) for seq_num in acked} == acked
    assert sorted(there) == list(range(len(there)))


def test_a_second_signal_ends_a_stop_that_waits(spec):
    with (
        Serving("--memory", "--init-file", spec) as server,
        socket.create_connection(("127.0.0.1", server.port), SECS_MAX) as client,
    ):
        # An append whose body does not come is under way, and the stop waits for it.
        client.sendall(
            b"POST /v1/streams/events/records HTTP/1.1\r\nhost: x\r\ns2-basin: my-basin\r\n"
            b"content-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        )
        # Taken for sure only when the count of requests says one more than were made here.
        for asked in range(1, 1000):
            if b"bourn_requests_total %d\n" % (asked + 1) in get(f"{server.url}/metrics")[2]:
                break
        server.send(signal.SIGTERM)
        server.until_said("stopping")
        assert server.stop(signal.SIGTERM) == 128 + signal.SIGTERM


def test_a_stop_during_the_start_ends_it_at_once_and_says_what_took_so_long():
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a store that never answers
        port = silent.getsockname()[1]
        server = Serving(
            "--bucket",
            "s3://silent-bucket",
            variables={
                "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": "secret",
            },
        )
        try:
            server.until_said("reading what s3://silent-bucket holds")
            assert server.stop() == 0
            assert server.errors().endswith("stopped before it was ready\n")
        finally:
            server._end()


def test_a_server_started_twice_by_mistake_leaves_the_first_one_serving(tmp_path, spec):
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags, "--init-file", spec) as server:
        second = bourn("serve", *flags, "--port", str(server.port))
        assert second.code == 2
        assert "the port is taken" in second.err
        append(server, "events", "still here")
        assert lines_of("events", server) == ["still here"]
        assert len(list((tmp_path / "data" / "epoch").iterdir())) == 1


def test_a_damaged_bucket_is_named_and_not_served(tmp_path, spec):
    flags = ("--bucket", str(tmp_path / "data"))
    with Serving(*flags, "--init-file", spec) as server:
        append(server, "events", "one")
        server.send(signal.SIGKILL)
        server.child.wait(SECS_MAX)
    commits = sorted(path for path in (tmp_path / "data" / "wal").rglob("*") if path.is_file())
    data = bytearray(commits[0].read_bytes())
    data[len(data) // 2] ^= 0xFF
    commits[0].write_bytes(data)
    ended = bourn("serve", *flags, "--port", "0")
    assert (ended.code, ended.out) == (1, b"")
    last = ended.err.splitlines()[-1]
    assert last.startswith(f"bourn serve: cannot start on file://{tmp_path}/data: wal/")


def test_a_self_signed_certificate_is_made_and_both_protocols_are_offered(spec):
    with Serving("--memory", "--tls-self", "--init-file", spec) as server:
        assert server.url == f"https://127.0.0.1:{server.port}"
        assert server.printed[3] == 'export S2_SSL_NO_VERIFY="true"'
        words = ("basin", "list", "--endpoint", server.url)
        distrusted = bourn(*words)
        assert distrusted.code == 3
        assert "is not trusted: set S2_SSL_NO_VERIFY=true" in distrusted.err
        assert bourn(*words, variables={"S2_SSL_NO_VERIFY": "true"}).lines[1].startswith(BASIN)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        for offered, chosen in ((["http/1.1", "h2"], "h2"), (["http/1.1"], "http/1.1")):
            context.set_alpn_protocols(offered)
            with (
                socket.create_connection(("127.0.0.1", server.port), SECS_MAX) as raw,
                context.wrap_socket(raw) as tls,
            ):
                assert tls.selected_alpn_protocol() == chosen
        plain = bourn("basin", "list", "--endpoint", server.url.replace("https", "http"))
        assert plain.code == 3
        assert plain.err.count("\n") == 1
        assert server.stop() == 0


def test_a_certificate_of_ones_own_is_served_and_trusted(tmp_path, spec):
    pem = tmp_path / "own.pem"
    pem.write_bytes(make_self_signed("localhost", SystemClock().now_ms()))
    files = ("--tls-cert", str(pem), "--tls-key", str(pem))
    with Serving("--memory", *files, "--init-file", spec) as server:
        assert len(server.printed) == 4
        words = ("basin", "list", "--endpoint", server.url)
        assert bourn(*words, variables={"SSL_CERT_FILE": str(pem)}).lines[1].startswith(BASIN)


def test_basins_by_host_pages_of_any_origin_and_every_address(spec):
    domains = ("--basin-domain", "b.example", "--basin-domain", "c.example")
    flags = ("--memory", "--init-file", spec, "--host", "0.0.0.0", "--no-auth")
    with Serving(*flags, *domains) as server:
        assert server.host == "127.0.0.1", "an address that can be called"
        assert "INFO bourn.engine.lifecycle: epoch 1" in server.errors()
        for host in ("my-basin.b.example", "my-basin.c.example:80"):
            body = get(f"{server.url}/v1/streams", host=host)[2]
            assert [stream["name"] for stream in json.loads(body)["streams"]] == ["events"]
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            get(f"{server.url}/v1/streams", host="my-basin.d.example")
        refused.value.close()
        _, headers, _ = get(f"{server.url}/v1/basins", origin="https://page.example")
        assert headers["access-control-allow-origin"] == "https://page.example"


def test_no_pages_of_other_origins_and_no_talk_where_told_so():
    with Serving("--memory", "--no-cors", "--log-level", "error") as server:
        _, headers, _ = get(f"{server.url}/v1/basins", origin="https://page.example")
        assert "access-control-allow-origin" not in headers
        assert server.stop() == 0
        assert "INFO" not in server.errors()


def test_a_bucket_on_s3_is_served_with_the_usual_variables_and_kept(spec):
    with moto_server() as store:
        store.make_bucket("serve-test")
        variables = {
            "AWS_ENDPOINT_URL_S3": store.endpoint,
            "AWS_ACCESS_KEY_ID": store.access_key_id,
            "AWS_SECRET_ACCESS_KEY": store.secret_access_key,
        }
        flags = ("--bucket", "s3://serve-test", "--path", "deep/er")
        with Serving(*flags, "--init-file", spec, variables=variables) as server:
            assert server.bucket == "s3://serve-test/deep/er"
            append(server, "events", "one")
            assert server.stop() == 0
        with Serving(*flags, variables=variables) as server:
            assert lines_of("events", server) == ["one"]
        missing = bourn(
            "serve", "--port", "0", "--bucket", "s3://no-such-bucket", variables=variables
        )
        assert missing.code in {1, 2}
        assert missing.err.splitlines()[-1].startswith("bourn serve: cannot ")
        assert "Traceback" not in missing.err


def test_limits_and_quotas_hold_as_they_were_given(spec):
    flags = ("--limit-basin-requests", "2", "--quota-basins", "1", "--init-file", spec)
    with Serving("--memory", *flags) as server:
        answers = []
        for _ in range(20):  # far more than could flow in meanwhile
            try:
                answers.append(get(f"{server.url}/v1/streams", **{"s2-basin": BASIN})[:2])
            except urllib.error.HTTPError as error:
                answers.append((error.code, dict(error.headers)))
        assert [status for status, _ in answers[:2]] == [200, 200]
        waits = [int(fields["retry-after-ms"]) for status, fields in answers if status != 200]
        assert waits
        assert all(1 <= wait <= 500 for wait in waits)
        put = urllib.request.Request(f"{server.url}/v1/basins/one-too-many", method="PUT")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(put, timeout=SECS_MAX)
        assert refused.value.code == 403
        assert json.loads(refused.value.read())["code"] == "quota_exhausted"


def test_a_spec_beyond_the_quotas_stops_the_start_with_a_line_that_says_so(spec):
    ended = bourn("serve", "--memory", "--port", "0", "--quota-basins", "0", "--init-file", spec)
    assert ended.code == 1
    assert "quota of basins, 0, is used up" in ended.err.splitlines()[-1]
