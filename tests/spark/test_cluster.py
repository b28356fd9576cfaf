"""The connector on executors that are processes of their own, with speculation."""

import base64
import json
import subprocess
import sys
from pathlib import Path

import pytest

from bourn.client import Client, Settings
from tests.cli.process import Serving, environment
from tests.s3server import S3Server
from tests.spark.readers import fill
from tests.spark.writers import bodies_of
from tests.sparks import S3_BUCKET

BASIN = "cluster-tests"
KEY = base64.b64encode(bytes(range(32))).decode()
COUNT = 4000
WAIT_SECS = 900


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_speculative_and_repeated_tasks_of_other_processes_write_every_row_once(
    server: Serving, moto: S3Server, tmp_path: Path
):
    """Encrypted streams, and a staging place in S3: all that two executors share."""
    settings = Settings.of(BASIN, server.url, encryption_key=KEY, environ={})
    plan = {
        "endpoint": server.url,
        "basin": BASIN,
        "encryptionKey": KEY,
        "source": "in",
        "target": "out",
        "staging": f"s3://{S3_BUCKET}/cluster",
        "checkpoint": str(tmp_path / "checkpoint"),
        "attempts": str(tmp_path / "attempts"),
    }
    variables = {
        "AWS_ENDPOINT_URL_S3": moto.endpoint,
        "AWS_ACCESS_KEY_ID": moto.access_key_id,
        "AWS_SECRET_ACCESS_KEY": moto.secret_access_key,
    }
    with Client(settings) as client:
        client.create_basin(BASIN, {"create_stream_on_append": True, "stream_cipher": "aegis-256"})
        fill(client, "in", COUNT, size=100)
        ended = subprocess.run(
            [sys.executable, "-m", "tests.spark.cluster", json.dumps(plan)],
            env=environment(variables),
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=WAIT_SECS,
            check=True,
        )
        wanted = [b"%0100d" % number for number in range(COUNT)]
        assert bodies_of(client, "out") == wanted
        assert bodies_of(client, "out/query") == wanted
    assert ended.stdout == "2 executors\n"
    for kind in ("batch", "query"):
        attempts = {path.name for path in (tmp_path / "attempts" / kind).iterdir()}
        assert {"0-0", "1-0", "2-0", "3-0", "2-1"} <= attempts, "one has failed"
        assert "1-1" in attempts, "one was started beside the one that slept"
