"""The arguments of `bourn pipeline`; what it does is in `pipeline`, which takes long to load."""

import argparse
from collections.abc import Callable
from typing import Any, Final

from bourn.cli import transfer_options
from bourn.cli.config import CONFIG_FILE, CONFIG_VARIABLE
from bourn.cli.options import BY_NAME, Setting

SHARED: Final = ("bucket", "path", "log_level")  # settings of the server


def add_commands(group: Any, add: Callable[..., Any], add_setting: Callable[..., None]) -> None:
    """Add `run`, `status` and `audit`; `add` and `add_setting` are the parser's own."""
    run = add(group, "run", _run, "run the pipeline on a bucket", is_client=False)
    when = run.add_mutually_exclusive_group(required=True)
    when.add_argument("--once", action="store_true", help="do what there is to do, and end")
    when.add_argument(
        "--follow", action="store_true", help="go on as the log grows, until a signal comes"
    )
    run.add_argument(
        "--master", metavar="URL", help="the Spark to use: spark://host:7077, local[2] [local[*]]"
    )
    run.add_argument(
        "--jobs", metavar="NAMES", help="only these, with commas: tier,merge,retain,meter,audit"
    )
    run.add_argument(
        "--backlog", metavar="SIZE", help="following: begin once so much of the log waits [64MiB]"
    )
    run.add_argument(
        "--age", metavar="TIME", help="following: begin once something has waited so long [60s]"
    )
    run.add_argument(
        "--grace",
        metavar="TIME",
        help="a file of the table stays so long behind the version that took it out [10m]",
    )
    run.add_argument(
        "--tied", action="store_true", help="end at once when standard input ends: for a parent"
    )
    status = add(group, "status", _status, "show how far the pipeline has come", is_client=False)
    audit = add(group, "audit", _audit, "prove that the bucket holds what it must", is_client=False)
    audit.add_argument(
        "--master", metavar="URL", help="the Spark to use: spark://host:7077, local[2] [local[*]]"
    )
    audit.add_argument(
        "--show", metavar="N", type=int, default=50, help="show so many violations at most [50]"
    )
    for parser in (run, status, audit):
        parser.add_argument("--json", action="store_true", help="print one JSON object a line")
        parser.add_argument(
            "--config",
            metavar="FILE",
            help=f"the server's file of settings; ${CONFIG_VARIABLE}, ./{CONFIG_FILE}",
        )
        for name in SHARED:
            setting: Setting = BY_NAME[name]
            add_setting(parser, setting)
    transfer_options.add_commands(group, add, add_setting)


def _run(arguments: argparse.Namespace) -> int:
    from bourn.cli import pipeline  # noqa: PLC0415  no other command must wait for it to load

    return pipeline.run(arguments)


def _audit(arguments: argparse.Namespace) -> int:
    from bourn.cli import audit  # noqa: PLC0415  as above

    return audit.audit(arguments)


def _status(arguments: argparse.Namespace) -> int:
    from bourn.cli import pipeline  # noqa: PLC0415  as above

    return pipeline.show_status(arguments)
