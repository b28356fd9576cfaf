"""Whether a server has a pipeline, and the command that runs it."""

import math
import os
import sys
from collections.abc import Mapping
from typing import Final

from bourn.bucket.location import Location
from bourn.cli.failures import Misused
from bourn.cli.supervise import Supervision
from bourn.errors import BucketRefused
from bourn.pipeline.place import place_of
from bourn.pipeline.session import SparkMissing, require_packages
from bourn.settings import PIPELINE_LOCAL, PIPELINE_OFF, ServeSettings

MEMORY: Final = "memory"
PIPELINE_MODULE = "bourn.cli.main"


class NoPipeline(Exception):
    """There is none, though nobody has said so; the text is why."""


def plan_pipeline(
    settings: ServeSettings, location: Location, environ: Mapping[str, str]
) -> Supervision | None:
    """Return what to run, None for nothing; NoPipeline where only the default would have it.

    Misused where it is asked for and cannot be.
    """
    if settings.pipeline == PIPELINE_OFF:
        return None
    if location.scheme == MEMORY:
        if not settings.pipeline:
            return None
        raise Misused("pipeline: a bucket in memory has none: leave it out, or name a bucket")
    try:
        require_packages()
        place_of(location, environ)
    except SparkMissing as error:
        if settings.pipeline:
            raise Misused(f"pipeline: {error}") from None
        raise NoPipeline(str(error)) from None
    except BucketRefused as error:
        if settings.pipeline:
            raise Misused(f"pipeline: {error.message}") from None
        raise NoPipeline(error.message) from None
    master = settings.pipeline or PIPELINE_LOCAL
    if master == PIPELINE_LOCAL:
        master = f"local[{local_cores()}]"
    return Supervision(
        command=_command(settings, master),
        master=master,
        backlog_bytes=settings.pipeline_backlog,
        age_secs=settings.pipeline_age,
    )


def local_cores() -> int:
    """Return how many cores of this machine the pipeline may use: half of them, one at least."""
    return max(1, len(os.sched_getaffinity(0)) // 2)


def _command(settings: ServeSettings, master: str) -> tuple[str, ...]:
    """Return the command: nothing in it is a secret, and nothing else tells it anything."""
    given = {
        "--master": master,
        "--bucket": settings.bucket,
        "--path": settings.path,
        "--backlog": str(settings.pipeline_backlog),
        "--age": f"{math.ceil(settings.pipeline_age * 1000)}ms",
        "--log-level": settings.log_level,
        "--config": os.devnull,
    }
    # -P: whatever lies in the working directory is no module of ours.
    words = [sys.executable, "-P", "-m", PIPELINE_MODULE, "pipeline", "run"]
    words += ["--follow", "--tied", "--json"]
    return (*words, *(f"{flag}={text}" for flag, text in given.items() if text))
