"""`bourn serve` without patience: snapshots and collections come at once, as does the pipeline.

Everything else is the server's own; settings that have no flag are set here.
"""

import sys
from functools import partial
from typing import Any

from bourn.cli import config, supervise_plan
from bourn.cli.main import main
from bourn.settings import EngineSettings

IMPATIENT: dict[str, Any] = {
    "snapshot_interval_secs": 2.0,
    "collect_grace_secs": 2.0,
    "housekeeping_secs": 0.2,
    "tail_cache_bytes": 1 << 20,  # so that reads come from the bucket
    "read_cache_bytes": 1 << 20,
    "encoded_cache_bytes": 1 << 20,
}

if __name__ == "__main__":
    vars(config)["EngineSettings"] = partial(EngineSettings, **IMPATIENT)
    supervise_plan.PIPELINE_MODULE = "tests.proof.pipeline"
    sys.exit(main(["serve", *sys.argv[1:]]))
