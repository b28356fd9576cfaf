"""`bourn pipeline` without patience: all jobs have work all the time, and nothing is kept long."""

import sys
from functools import partial
from typing import Any

from bourn.cli import pipeline
from bourn.cli.main import main
from bourn.settings import PipelineSettings

IMPATIENT: dict[str, Any] = {
    "poll_secs": 0.3,
    "retain_secs": 5.0,
    "merge_files": 3,
    "grace_secs": 20.0,
    "log_keep_secs": 30.0,
    "checkpoint_versions": 3,
    "retry_secs_max": 2.0,
    "niceness": 0,  # what is proved must happen, on a busy machine too
}

if __name__ == "__main__":
    vars(pipeline)["PipelineSettings"] = partial(PipelineSettings, **IMPATIENT)
    sys.exit(main(sys.argv[1:]))
