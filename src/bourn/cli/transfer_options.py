"""The arguments of `bourn pipeline export`, `import`, `replay`; what they do is in `transfer`."""

import argparse
from collections.abc import Callable
from typing import Any, Final

from bourn.cli.config import CONFIG_FILE, CONFIG_VARIABLE
from bourn.cli.keys import add_key_option
from bourn.cli.options import BY_NAME
from bourn.limits import U64_MAX

SHARED: Final = ("bucket", "path", "log_level")  # settings of the server
FORMATS: Final = ("parquet", "delta", "jsonl")
STREAMS: Final = "s2://BASIN[/STREAM]"


def add_commands(group: Any, add: Callable[..., Any], add_setting: Callable[..., None]) -> None:
    """Add the three; `add` and `add_setting` are the parser's own."""
    _add_export(group, add, add_setting)
    _add_import(group, add)
    _add_replay(group, add)


def _add_export(group: Any, add: Callable[..., Any], add_setting: Callable[..., None]) -> None:
    parser = add(group, "export", _export, "write records of streams to files", is_client=False)
    parser.add_argument(
        "streams", metavar=STREAMS, help="a stream, those that begin so (logs/*), or all of a basin"
    )
    parser.add_argument(
        "--to", metavar="PLACE", required=True, help="an empty or new directory, or s3://…"
    )
    parser.add_argument("--format", choices=FORMATS, default="parquet", help="what to write")
    for name, what in (("seq-num", "number"), ("timestamp", "time, in ms")):
        parser.add_argument(f"--from-{name}", metavar="N", type=_u64, help=f"from this {what} on")
        parser.add_argument(
            f"--to-{name}", metavar="N", type=_u64, help=f"up to before this {what}"
        )
    parser.add_argument(
        "--endpoint", metavar="URL", help="read from this server, not from the bucket"
    )
    parser.add_argument("--token", metavar="TOKEN", help="its access token; S2_ACCESS_TOKEN")
    add_key_option(parser)
    parser.add_argument("--master", metavar="URL", help="the Spark to use [local[*]]")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--config",
        metavar="FILE",
        help=f"the server's file of settings; ${CONFIG_VARIABLE}, ./{CONFIG_FILE}",
    )
    for name in SHARED:
        add_setting(parser, BY_NAME[name])


def _add_import(group: Any, add: Callable[..., Any]) -> None:
    parser = add(group, "import", _import, "append the records of files to streams")
    parser.add_argument(
        "source",
        metavar="PLACE",
        help="a file, a directory, or s3://…: an export, or others' files",
    )
    parser.add_argument(
        "--to",
        metavar=STREAMS,
        required=True,
        help="the stream, or the basin of those named inside",
    )
    parser.add_argument("--format", choices=FORMATS, help="what it is, where its names do not tell")
    parser.add_argument(
        "--at", metavar="N", type=_u64, default=0, help="the number that the first record gets [0]"
    )
    _add_new_timestamps(parser)
    add_key_option(parser)


def _add_replay(group: Any, add: Callable[..., Any]) -> None:
    parser = add(
        group, "replay", _replay, "append the records of streams to other streams", is_client=False
    )
    parser.add_argument(
        "streams", metavar=STREAMS, help="a stream, those that begin so (logs/*), or all of a basin"
    )
    parser.add_argument(
        "--to", metavar=STREAMS, required=True, help="the stream, or the basin where names stay"
    )
    parser.add_argument("--from-endpoint", metavar="URL", help="the server to read from")
    parser.add_argument("--to-endpoint", metavar="URL", help="the server to append to")
    parser.add_argument("--from-token", metavar="TOKEN", help="its token; S2_ACCESS_TOKEN")
    parser.add_argument("--to-token", metavar="TOKEN", help="its token; S2_ACCESS_TOKEN")
    parser.add_argument(
        "--from-encryption-key-file", metavar="FILE", help="where the key of the streams to read is"
    )
    parser.add_argument(
        "--to-encryption-key-file", metavar="FILE", help="where the key to append with is"
    )
    parser.add_argument(
        "--speed", metavar="SPEED", type=_speed, default="max", help="1x as it was, 10x, max [max]"
    )
    _add_new_timestamps(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")


def _add_new_timestamps(parser: Any) -> None:
    parser.add_argument(
        "--new-timestamps",
        action="store_true",
        help="let the server change timestamps, where it would",
    )


def _u64(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > U64_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {U64_MAX}")
    return int(text)


def _speed(text: str) -> float | None:
    if text == "max":
        return None
    try:
        speed = float(text.removesuffix("x"))
    except ValueError:
        speed = 0.0
    if not 0 < speed < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no speed: write 1x, 10x, 0.5x or max")
    return speed


def _export(arguments: argparse.Namespace) -> int:
    from bourn.cli import transfer  # noqa: PLC0415  no other command must wait for it to load

    return transfer.export(arguments)


def _import(arguments: argparse.Namespace) -> int:
    from bourn.cli import transfer  # noqa: PLC0415  as above

    return transfer.load(arguments)


def _replay(arguments: argparse.Namespace) -> int:
    from bourn.cli import transfer  # noqa: PLC0415  as above

    return transfer.replay(arguments)
