"""What is said of a Spark that fails is the one line of its many that tells why."""

import pytest

from bourn.pipeline.job import cause_of
from bourn.pipeline.session import _told

JAVA = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "x.py", line 1, in work
bourn.pipeline.tasks.VersionMismatch: this executor has bourn 0.0.9, its driver 0.1.0
"""


class Gone(Exception):
    def __str__(self) -> str:
        raise ConnectionError("the Java has gone")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (Exception(JAVA), "this executor has bourn 0.0.9"),
        (Gone(), ""),
        (Exception("An error occurred while calling o25.broadcast."), ""),
    ],
)
def test_the_cause_is_found_or_left_to_the_log(error, says):
    found = cause_of(error)
    assert says in found
    assert bool(found) is bool(says)


@pytest.mark.parametrize(
    ("log", "says"),
    [
        ("26/11/16 WARN x: y\n", "otherwise"),
        (
            "a\n26/11/16 01:00:00 ERROR Backend: All masters are unresponsive! Giving up.\nb\n",
            "Backend: All masters are unresponsive! Giving up.",
        ),
        (
            'Exception in thread "main" org.apache.spark.SparkException: Master must be yarn\n',
            "Master must be yarn",
        ),
    ],
)
def test_the_log_says_what_the_error_does_not(tmp_path, log, says):
    path = tmp_path / "spark.log"
    path.write_text(log)
    assert _told(path, "otherwise") == says
    assert _told(tmp_path / "none", "otherwise") == "otherwise"
