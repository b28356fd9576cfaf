"""One Spark for all tests of a process: it takes ten seconds to start; there can be no other.

Kernels are compiled before the first test, once: what a test waits for is never that.

No test has a deadline: a machine that stands still for a moment is no fault of what is tested.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from bourn.bucket import kernel
from bourn.http import lane_kernel
from bourn.layout import arrow, codec, joined, json_records
from bourn.layout.history import rows
from bourn.pipeline.session import Spark
from bourn.wire import json_check
from tests import tally
from tests.s3server import S3Server, moto_server
from tests.sparks import LOCAL, S3_BUCKET

settings.register_profile("patient", settings.default, deadline=None)
settings.load_profile("patient")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile what is not compiled yet, before there are workers."""
    if not hasattr(session.config, "workerinput"):
        for kernels in (codec, joined, json_records, json_check, rows, arrow):
            kernels.warm(print)
        lane_kernel.load()
        kernel.load()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Note what was run, for the last line of `make test`; not what each worker ran of it."""
    path = os.environ.get(tally.VARIABLE)
    if path and not hasattr(terminalreporter.config, "workerinput"):
        stats = terminalreporter.stats
        counts = {kind: len(found) for kind, found in stats.items()}
        tally.note(
            Path(path), counts | {"failed": counts.get("failed", 0) + counts.get("error", 0)}
        )


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    with moto_server() as server:
        server.make_bucket(S3_BUCKET)
        yield server


@pytest.fixture(scope="session")
def spark(moto: S3Server) -> Iterator[Spark]:
    """Spark, with the credentials of the S3 server in its environment and nowhere else."""
    before = dict(os.environ)
    os.environ["AWS_ACCESS_KEY_ID"] = moto.access_key_id
    os.environ["AWS_SECRET_ACCESS_KEY"] = moto.secret_access_key
    running = Spark(LOCAL)
    try:
        yield running
    finally:
        running.close()
        os.environ.clear()
        os.environ.update(before)
