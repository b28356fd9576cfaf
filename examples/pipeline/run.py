"""The declarative pipeline of `flows.py`, run once by Spark's own command.

    pip install 'pyspark[pipelines]'      # Spark Connect: grpcio, grpcio-status and others
    python examples/pipeline/run.py

Clicks are appended here; `spark-pipelines` runs the flow from `clicks` to `pages`; then both are
compared.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from session import endpoint_of  # noqa: E402  it lies beside the examples

from bourn.client import Client, ReadStart, Settings  # noqa: E402  as above
from bourn.model.record import Record  # noqa: E402  as above
from bourn.pipeline.java import find_java  # noqa: E402  as above

BASIN = "declarative"
SPEC = """name: clicks-to-pages
storage: file://{place}/storage
libraries:
  - glob:
      include: flows.py
"""


def bodies_of(client: Client, stream: str) -> list[bytes]:
    batches = client.read_session(stream, ReadStart(seq_num=0))
    return [body for batch in batches for body in batch.column("body").to_pylist()]


def run_pipeline(place: str, variables: Mapping[str, str]) -> bool:
    """Run it by Spark's command, and show what that says; True where the run has completed.

    Where a Python source or sink takes part, the command of pyspark 4.3 exits with 1 behind a run
    that has completed: docs/spark.md says why. Any other failure is one.
    """
    command = Path(sys.executable).parent / "spark-pipelines"
    said: list[str] = []
    with subprocess.Popen(
        [command, "run"],
        cwd=place,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as child:
        assert child.stdout is not None
        for line in child.stdout:
            print(line, end="", flush=True)
            said.append(line)
    text = "".join(said)
    is_known = all(word in text for word in ("UNKNOWN_RESPONSE", "__python_accumulator__"))
    return "Run is COMPLETED." in text and (child.returncode == 0 or is_known)


def run(endpoint: str, count: int) -> bool:
    pages = [b"/page/%d" % (number % 7) for number in range(count)]
    settings = Settings.of(BASIN, endpoint, environ={})
    with tempfile.TemporaryDirectory() as place, Client(settings) as client:
        client.create_basin(BASIN, {"create_stream_on_append": True})
        clicks = [Record(b'{"page": "%s"}' % page) for page in pages]
        client.append("clicks", clicks)
        Path(place, "spark-pipeline.yml").write_text(SPEC.format(place=place))
        shutil.copy(HERE / "flows.py", place)
        variables = {
            "BOURN_ENDPOINT": endpoint,
            "BOURN_BASIN": BASIN,
            "BOURN_STAGING": f"{place}/staging",
            "JAVA_HOME": find_java(os.environ, Path(place)).home,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        did_run = run_pipeline(place, os.environ | variables)
        written = bodies_of(client, "pages")
    print(f"{count} clicks, {len(written)} pages: {'equal' if written == pages else 'NOT EQUAL'}")
    return did_run and written == pages


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--endpoint", help="of a server that runs; otherwise one is started")
    parser.add_argument("--count", type=int, default=1000, help="clicks, at most 1000 (1000)")
    options = parser.parse_args()
    with endpoint_of(options.endpoint) as url:
        sys.exit(0 if run(url, options.count) else 1)
