"""A Spark to run jobs on, started when the first one comes.

No data passes through it: tasks read and write the bucket themselves, and hand back a row for each
file. On this machine it listens on the loopback alone, and its own log goes to a file.
"""

import importlib.util
import logging
import os
import re
import shutil
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bourn.limits import PIPELINE_LOG_TAIL_BYTES
from bourn.pipeline.java import NoJava, find_java
from bourn.settings import PipelineSettings

if TYPE_CHECKING:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

INSTALL: Final = "pip install 'bourn[pipeline]'"
STOP_SECS_MAX: Final = 20
_NEEDED: Final = ("pyspark", "deltalake")
_LOG: Final = "spark.log"
_ERROR: Final = re.compile(r".*(?:\bERROR|Exception:|Error:) (.+)")
_DIRECTORY: Final = "bourn-spark-"
_OWNER: Final = re.compile(rf"{_DIRECTORY}(\d+)-\w+")
_LOOPBACK: Final = "127.0.0.1"
_EVERYWHERE: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_ON_THIS_MACHINE: Final = {
    "spark.driver.host": _LOOPBACK,
    "spark.driver.bindAddress": _LOOPBACK,
    "spark.driver.memory": "768m",
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC",
    # Between processes of one machine: it would cost a third of all that a merge does.
    "spark.shuffle.compress": "false",
    "spark.shuffle.spill.compress": "false",
}


class SparkMissing(Exception):
    """Spark cannot be started here; the text says what is missing."""


def require_packages() -> None:
    """Raise SparkMissing where a package is not installed, saying how to get it."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise SparkMissing(f"the pipeline needs {' and '.join(missing)}: {INSTALL}")


class Spark:
    """At most one running Spark; `context` starts it, `close` ends it for good or until then."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._context: SparkContext | None = None
        self._directory: Path | None = None
        self._turn = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether there is one at the moment."""
        return self._context is not None

    @property
    def master(self) -> str:
        """The cluster."""
        return self._settings.master

    def last_error(self) -> str:
        """Return the last line of Spark's own log that tells of an error."""
        if self._directory is None:
            return ""
        return _told(self._directory / _LOG, "")

    def context(self) -> "SparkContext":
        """Return the running one, or start it, which takes some seconds. Blocks."""
        with self._turn:
            if self._context is None:
                require_packages()
                self._context = self._start()
            return self._context

    def session(self) -> "SparkSession":
        """Return a session for SQL, the active one of this thread. Blocks as `context` does.

        Where another thread has made a session before, pyspark leaves this one without, and Spark
        then looks for a format among those of no session at all.
        """
        from pyspark.sql import SparkSession  # noqa: PLC0415  slow, and not everybody has it

        context = self.context()
        session = SparkSession(context)
        java: Any = context._jvm  # noqa: SLF001  pyspark has no other way
        java.org.apache.spark.sql.classic.SparkSession.setActiveSession(session._jsparkSession)  # noqa: SLF001
        return session

    def cancel(self) -> None:
        """End the jobs that run."""
        context = self._context
        if context is not None:
            context.cancelAllJobs()

    def close(self) -> None:
        """End Spark and its Java. Blocks."""
        with self._turn:
            context, self._context = self._context, None
            if context is not None:
                _end(context)
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    def _start(self) -> "SparkContext":
        from pyspark import SparkContext  # noqa: PLC0415  slow, and not everybody has it
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415  as above

        directory = self._directory or _new_directory()
        self._directory = directory
        self._set_environment(directory)
        conf = self._conf(directory)
        log_file = directory / _LOG
        try:
            with log_file.open("ab") as output:
                gateway = launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]  # pyspark's
            return SparkContext(conf=conf, gateway=gateway)
        except Exception as error:
            _drop_gateway()
            raise SparkMissing(
                f"Spark does not start on {self._settings.master}: {_told(log_file, str(error))}"
            ) from error

    def _set_environment(self, directory: Path) -> None:
        """Say which Java, which Python and which Spark; child processes inherit it."""
        try:
            java = find_java(os.environ, directory)
        except NoJava as error:
            raise SparkMissing(str(error)) from None
        log.info("Java is %s's", java.origin)
        os.environ["JAVA_HOME"] = java.home
        if self._settings.is_local:
            spec = importlib.util.find_spec("pyspark")
            assert spec is not None
            assert spec.origin is not None
            os.environ["SPARK_HOME"] = str(Path(spec.origin).parent)
            os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
            os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

    def _conf(self, directory: Path) -> "SparkConf":
        from pyspark import SparkConf  # noqa: PLC0415  slow, and not everybody has it

        conf = SparkConf().setMaster(self._settings.master)
        conf.setAppName("bourn pipeline").setAll(list(_EVERYWHERE.items()))
        if self._settings.is_local:
            conf.setAll(list(_ON_THIS_MACHINE.items()))
            conf.set("spark.local.dir", str(directory / "scratch"))
            conf.set("spark.sql.warehouse.dir", str(directory / "warehouse"))
        return conf


def _new_directory() -> Path:
    """Make a directory of our own, and remove those whose owners were killed."""
    for old in Path(tempfile.gettempdir()).glob(f"{_DIRECTORY}*"):
        found = _OWNER.fullmatch(old.name)
        if found and not Path("/proc", found[1]).exists() and Path("/proc/self").exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_DIRECTORY}{os.getpid()}-"))


def _told(log_file: Path, otherwise: str) -> str:
    """Return what the last line of a log that tells of an error says."""
    try:
        text = log_file.read_bytes()[-PIPELINE_LOG_TAIL_BYTES:].decode(errors="replace")
    except OSError:
        return otherwise
    found = [match[1] for line in text.splitlines() if (match := _ERROR.search(line))]
    return found[-1].strip() if found else otherwise


def _end(context: "SparkContext") -> None:
    try:
        context.stop()
    except Exception:  # the Java may be gone already, which is what is wanted
        log.debug("Spark ended by itself", exc_info=True)
    _drop_gateway()


def _drop_gateway() -> None:
    """End the Java of a stopped Spark: it lives as long as its standard input."""
    from pyspark import SparkContext  # noqa: PLC0415  slow, and not everybody has it

    gateway = SparkContext._gateway  # noqa: SLF001  there is no other way to let it go
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001  as above
    # One whose Java died under it stays for pyspark the one that runs, and there may be no other.
    SparkContext._active_spark_context = None  # noqa: SLF001  as above
    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is not None:
        process.stdin.close()
        try:
            process.wait(STOP_SECS_MAX)
        except Exception:  # noqa: BLE001  of subprocess: it did not listen
            process.kill()
            process.wait()
