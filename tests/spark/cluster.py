"""A Spark whose executors are processes of their own, with speculation and failing tasks.

    python -m tests.spark.cluster '{"endpoint": …, "basin": …, "source": …, "target": …, …}'

A master and two workers are started here, each worker on an address of the loopback of its own:
Spark starts no second attempt on the host of the first, and in `local-cluster` there is but one.

Reads the stream `source` and writes its bodies to `target`, as a batch with a name and then as a
query. One task of each sleeps in its first attempt, until another is started beside it on the
other executor; one fails. Every attempt leaves a file.
"""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

from bourn.pipeline.java import find_java
from bourn.pipeline.session import Spark
from bourn.settings import PipelineSettings
from bourn.spark import BournDataSource

LOOPBACK = "127.0.0.1"
WORKER_HOSTS = ("127.0.0.2", "127.0.0.3")
SLEEP_SECS = 0.5
SLEEPS_MAX = 400
PARTITIONS = 4
SLOW, FAILING = 1, 2
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
CONF = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.executor.cores": "1",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.quantile": "0.25",
    "spark.speculation.multiplier": "1.0",
    "spark.speculation.efficiency.enabled": "false",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executor.memory": "512m",
}


def hindered(attempts: Path) -> Work:
    """Return a task that notes each attempt, sleeps in the first at one partition, fails at one."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        assert context is not None
        (attempts / f"{context.partitionId()}-{context.attemptNumber()}").touch()
        is_first = context.attemptNumber() == 0
        for batch in batches:
            yield batch
            if is_first and context.partitionId() == FAILING:
                raise RuntimeError("injected failure of a task")
        if is_first and context.partitionId() == SLOW:
            pause = threading.Event()
            for _ in range(SLEEPS_MAX):
                if (attempts / f"{SLOW}-1").exists():
                    break
                pause.wait(SLEEP_SECS)

    return work


@contextmanager
def spark_cluster(logs: Path) -> Iterator[str]:
    """Run a master and two workers with one core each; give the URL of the master."""
    home = Path(pyspark.__file__).parent
    with socket.create_server((LOOPBACK, 0)) as free:
        url = f"spark://{LOOPBACK}:{free.getsockname()[1]}"
    environ = os.environ | {
        "JAVA_HOME": find_java(os.environ, logs).home,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_WORKER_DIR": str(logs / "work"),
        "PYSPARK_PYTHON": sys.executable,
    }
    deploy = "org.apache.spark.deploy"
    commands = [[f"{deploy}.master.Master", "--host", LOOPBACK, "--port", url.rpartition(":")[2]]]
    for host in WORKER_HOSTS:
        own = ["--host", host, "--cores", "1", "--memory", "1g"]
        commands.append([f"{deploy}.worker.Worker", *own, "--webui-port", "0", url])
    commands[0] += ["--webui-port", "0"]
    with ExitStack() as stack:
        for number, command in enumerate(commands):
            local = environ | {
                "SPARK_LOCAL_IP": LOOPBACK if not number else WORKER_HOSTS[number - 1]
            }
            log = stack.enter_context((logs / f"{number}.log").open("wb"))
            child = subprocess.Popen(
                [home / "bin" / "spark-class", *command],
                env=local,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
            stack.callback(child.wait)
            stack.callback(child.terminate)
        yield url


def session_of(master: str) -> tuple[Spark, SparkSession]:
    """Start a driver on that cluster."""
    conf = " ".join(f"--conf {name}={value}" for name, value in CONF.items())
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{conf} pyspark-shell"
    os.environ["SPARK_LOCAL_IP"] = LOOPBACK
    running = Spark(PipelineSettings(master=master))
    session = running.session()
    session.dataSource.register(BournDataSource)
    return running, session


def main(plan: dict[str, Any]) -> int:
    logs = Path(plan["attempts"], "logs")
    logs.mkdir(parents=True)
    with spark_cluster(logs) as master:
        running, session = session_of(master)
        try:
            copy(session, plan)
        finally:
            running.close()
    return 0


def copy(session: SparkSession, plan: dict[str, Any]) -> None:
    """Copy the stream, as a batch and as a query."""
    where = {"endpoint": plan["endpoint"], "basin": plan["basin"]}
    where |= {name: plan[name] for name in ("encryptionKey",) if name in plan}
    read = {**where, "stream": plan["source"], "minPartitions": str(PARTITIONS)}

    def shaped(frame: DataFrame, name: str) -> DataFrame:
        attempts = Path(plan["attempts"], name)
        attempts.mkdir(parents=True)
        bodies = frame.select("body")
        return bodies.mapInArrow(hindered(attempts), bodies.schema)

    write = {**where, "stagingLocation": plan["staging"]}
    frame = shaped(session.read.format("bourn").options(**read).load(), "batch")
    frame.write.format("bourn").mode("append").options(
        **write, stream=plan["target"], writeId="once"
    ).save()
    follow = session.readStream.format("bourn").options(**read, startingOffsets="earliest")
    query = (
        shaped(follow.load(), "query")
        .writeStream.format("bourn")
        .options(**write, stream=f"{plan['target']}/query", checkpointLocation=plan["checkpoint"])
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    executors = session.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
    print(f"{len(executors) - 1} executors", flush=True)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
