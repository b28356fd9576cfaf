"""What both examples need: a server of their own, and a Spark session that knows the format."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from bourn.spark import BournDataSource

READY = re.compile(r"bourn is ready on (https?://\S+), ")


@contextmanager
def endpoint_of(given: str | None) -> Iterator[str]:
    """The endpoint that was given, or that of a server in memory which ends with the block."""
    if given:
        yield given
        return
    command = [sys.executable, "-m", "bourn.cli.main", "serve", "--memory", "--port", "0"]
    server = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=dict(os.environ)
    )
    try:
        assert server.stdout is not None
        for line in server.stdout:
            found = READY.match(line)
            if found:
                yield found[1]
                break
    finally:
        server.terminate()
        server.wait()


@contextmanager
def spark_session(master: str = "local[2]") -> Iterator[SparkSession]:
    """A session on this machine, which finds a Java by itself.

    On a cluster of yours, make the session as you always do, and register the format.
    """
    running = Spark(PipelineSettings(master=master))
    try:
        session = running.session()
        session.conf.set("spark.sql.shuffle.partitions", "2")
        session.dataSource.register(BournDataSource)
        yield session
    finally:
        running.close()
