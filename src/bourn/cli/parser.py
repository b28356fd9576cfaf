"""The commands, their arguments and options; what each does is in the module of its function."""

import argparse
import difflib
import importlib.metadata
from collections.abc import Callable, Iterator
from typing import Any, Final, NoReturn

from bourn.cli import completion, metrics, pipeline_options, reading, records, resources, tokens
from bourn.cli.config import CONFIG_FILE, CONFIG_VARIABLE
from bourn.cli.failures import Misused
from bourn.cli.keys import add_key_option
from bourn.cli.options import SETTINGS, Setting
from bourn.cli.resources import CIPHERS, CLEARED, TIMESTAMP_MODES
from bourn.cli.units import parse_duration_ns, parse_size
from bourn.limits import KIB, RECORD_METERED_BYTES_MAX, U64_MAX

Run = Callable[[argparse.Namespace], int]

STREAM: Final = "s2://BASIN/STREAM"
TAIL_LINES: Final = 10
BENCH_RECORD_BYTES: Final = 8 * KIB
BENCH_RECORD_BYTES_MIN: Final = 128


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that says what to do."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(allow_abbrev=False, **kwargs)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and let the command that was meant refuse what it does not know."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = unknown[0].partition("=")[0]
            close = difflib.get_close_matches(flag, self._option_string_actions, n=1)
            remedy = f": did you mean {close[0]}?" if close and flag.startswith("-") else ""
            self.error(f"there is no {flag}{remedy}")
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """End the command."""
        remedy = "" if message.endswith("?") else f"; `{self.prog} --help` shows how"
        misused = Misused(f"{message}{remedy}")
        misused.prog = self.prog
        raise misused


def make_parser() -> Parser:
    """Return the parser of `bourn`. Parsed arguments have `run`, the command, and its `prog`."""
    parser = Parser(
        prog="bourn",
        description="A durable stream store on object storage that speaks the S2 API.",
        epilog="Without --endpoint, S2_ACCOUNT_ENDPOINT and S2_BASIN_ENDPOINT say where the server "
        "is; S2_ACCESS_TOKEN is the token. Exit codes: 0 done, 1 refused, 2 told wrong, 3 failed.",
    )
    version = importlib.metadata.version("bourn")
    parser.add_argument("--version", action="version", version=f"bourn {version}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)
    _add_serve(commands)
    _add_basin(commands)
    _add_stream(commands)
    _add_append(commands)
    _add_read(commands)
    _add_tail(commands)
    _add_trim(commands)
    _add_fence(commands)
    group = _add_group(commands, "token", "manage access tokens")
    tokens.add_commands(group, _add, _add_list_options, _duration)
    metrics.add_commands(_add_group(commands, "metrics", "show what was used"), _add)
    _add_bench(commands)
    group = _add_group(commands, "pipeline", "turn the log into the history table, on Spark")
    pipeline_options.add_commands(group, _add, _add_setting)
    shell = _add(commands, "completion", _complete, "print a completion script", is_client=False)
    shell.add_argument("shell", choices=sorted(completion.SHELLS), help="the shell to complete in")
    return parser


def leaves(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yield the parser of every command that does something."""
    inner = subcommands(parser)
    if not inner:
        yield parser
    for child in inner.values():
        yield from leaves(child)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers below a parser, by name."""
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  as above
            return dict(action.choices)
    return {}


def _serve(arguments: argparse.Namespace) -> int:
    from bourn.engine.process import share_heaps  # noqa: PLC0415  as below

    share_heaps()  # before what has heaps of its own is loaded
    from bourn.cli import serve  # noqa: PLC0415  a client must not wait for the engine to load

    return serve.run(arguments)


def _bench(arguments: argparse.Namespace) -> int:
    from bourn.cli.bench import command  # noqa: PLC0415  nothing else needs what it loads

    return command.run(arguments)


def _complete(arguments: argparse.Namespace) -> int:
    return completion.run(arguments, make_parser())


def _add(commands: Any, name: str, run: Run, what: str, *, is_client: bool = True) -> Parser:
    text = what[0].upper() + what[1:] + "."
    parser: Parser = commands.add_parser(name, help=what, description=text)
    parser.set_defaults(run=run, prog=parser.prog)
    if is_client:
        parser.add_argument(
            "--endpoint", metavar="URL", help="the server, such as http://host:port"
        )
        parser.add_argument("--token", metavar="TOKEN", help="the access token; S2_ACCESS_TOKEN")
        parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    return parser


def _add_group(commands: Any, name: str, what: str) -> Any:
    text = what[0].upper() + what[1:] + "."
    parser: Parser = commands.add_parser(name, help=what, description=text)
    return parser.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser)


def _add_serve(commands: Any) -> None:
    parser = _add(commands, "serve", _serve, "run the server", is_client=False)
    parser.epilog = (
        f"Every setting can also come from a variable (BOURN_ and its name) and from {CONFIG_FILE};"
        " a flag goes before a variable, a variable before the file."
    )
    parser.add_argument(
        "--config", metavar="FILE", help=f"file of settings; ${CONFIG_VARIABLE}, ./{CONFIG_FILE}"
    )
    for setting in SETTINGS:
        _add_setting(parser, setting)


def _add_setting(parser: Parser, setting: Setting) -> None:
    shown = f"{setting.help} [{setting.default}]".replace("%", "%%")
    if setting.can_be_off:
        parser.add_argument(
            setting.flag,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,  # or the help would show a second default
            help=shown,
        )
        parser.set_defaults(**{setting.name: None})
    elif setting.is_switch:
        parser.add_argument(setting.flag, action="store_true", default=None, help=shown)
    else:
        parser.add_argument(
            setting.flag,
            action="append" if setting.is_list else "store",
            metavar=setting.metavar,
            help=shown,
        )


def _add_basin(commands: Any) -> None:
    group = _add_group(commands, "basin", "manage basins")
    listing = _add(group, "list", resources.list_basins, "list basins")
    _add_list_options(listing)
    create = _add(group, "create", resources.create_basin, "create a basin")
    delete = _add(group, "delete", resources.delete_basin, "delete a basin and all its streams")
    config = _add(
        group, "config", resources.configure_basin, "show a basin's config; with options, change it"
    )
    for parser in (create, delete, config):
        parser.add_argument("basin", metavar="BASIN", help="its name: 8 to 48 of a-z, 0-9 and -")
    for parser in (create, config):
        _add_stream_options(parser, "of streams that do not say it themselves")
        switch = argparse.BooleanOptionalAction
        parser.add_argument(
            "--create-stream-on-append", action=switch, help="let an append create its stream"
        )
        parser.add_argument(
            "--create-stream-on-read", action=switch, help="let a read create its stream"
        )
        parser.add_argument(
            "--cipher", choices=(*CIPHERS, "none"), help="how records of new streams are encrypted"
        )


def _add_stream(commands: Any) -> None:
    group = _add_group(commands, "stream", "manage streams")
    listing = _add(group, "list", resources.list_streams, "list the streams of a basin")
    listing.add_argument("basin", metavar="s2://BASIN[/PREFIX]", help="the basin, or a part of it")
    _add_list_options(listing)
    create = _add(group, "create", resources.create_stream, "create a stream")
    delete = _add(group, "delete", resources.delete_stream, "delete a stream")
    config = _add(
        group,
        "config",
        resources.configure_stream,
        "show a stream's config; with options, change it",
    )
    for parser in (create, delete, config):
        parser.add_argument("stream", metavar=STREAM, help="the stream")
    for parser in (create, config):
        _add_stream_options(parser, "of the stream")


def _add_list_options(parser: Parser) -> None:
    parser.add_argument("--prefix", metavar="TEXT", help="only names that begin with this")
    parser.add_argument("--limit", metavar="N", type=_u64, help="at most this many")


def _add_stream_options(parser: Parser, whose: str) -> None:
    clear = f"`{CLEARED}` unsets it"
    parser.add_argument(
        "--retention",
        metavar="TIME",
        help=f"how long records {whose} stay: 7days, 12h, infinite; {clear}",
    )
    parser.add_argument("--storage-class", metavar="NAME", help=f"storage class {whose}; {clear}")
    parser.add_argument(
        "--timestamping",
        choices=(*TIMESTAMP_MODES, CLEARED),
        metavar="MODE",
        help=f"whose timestamps count: {', '.join(TIMESTAMP_MODES)}; {clear}",
    )
    parser.add_argument(
        "--uncapped",
        action=argparse.BooleanOptionalAction,
        help="let timestamps be ahead of the server's clock",
    )
    parser.add_argument(
        "--delete-on-empty",
        metavar="TIME",
        help=f"delete a stream that has been empty for so long; 0s never does; {clear}",
    )


def _add_append(commands: Any) -> None:
    parser = _add(commands, "append", records.append, "append lines of a file or of the input")
    parser.add_argument("stream", metavar=STREAM, help="the stream")
    parser.add_argument(
        "--file", metavar="FILE", default="-", help="where the records are; - is standard input"
    )
    parser.add_argument(
        "--format",
        choices=records.FORMATS,
        default="text",
        help="what a line is: a body as text, or a record as JSON",
    )
    _add_conditions(parser)


def _add_conditions(parser: Parser) -> None:
    parser.add_argument(
        "--match-seq-num", metavar="N", type=_u64, help="append only if this number is the next"
    )
    parser.add_argument(
        "--fencing-token", metavar="TOKEN", help="append only if this is the stream's token"
    )
    add_key_option(parser)


def _add_read(commands: Any) -> None:
    parser = _add(commands, "read", reading.read, "print records from a place on, up to the tail")
    parser.add_argument("stream", metavar=STREAM, help="the stream")
    start = parser.add_mutually_exclusive_group()
    start.add_argument("--seq-num", metavar="N", type=_u64, help="from this number on [0]")
    start.add_argument("--timestamp", metavar="MS", type=_u64, help="from this time on, in ms")
    start.add_argument("--ago", metavar="TIME", type=_duration, help="from so long ago on: 90s, 1h")
    start.add_argument("--tail-offset", metavar="N", type=_u64, help="from so many before the tail")
    parser.add_argument("--count", metavar="N", type=_u64, help="at most so many records")
    parser.add_argument("--bytes", metavar="N", type=_u64, help="at most so many metered bytes")
    parser.add_argument("--until", metavar="MS", type=_u64, help="up to this time, in ms")
    _add_output_options(parser)


def _add_tail(commands: Any) -> None:
    parser = _add(commands, "tail", reading.tail, "print the last records")
    parser.add_argument("stream", metavar=STREAM, help="the stream")
    parser.add_argument(
        "-n",
        "--lines",
        metavar="N",
        type=_u64,
        default=TAIL_LINES,
        help=f"how many [{TAIL_LINES}]",
    )
    _add_output_options(parser)


def _add_output_options(parser: Parser) -> None:
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is appended")
    add_key_option(parser)
    parser.add_argument(
        "--format",
        choices=records.FORMATS,
        default="text",
        help="what a line is: a body as text, or a record as JSON",
    )


def _add_trim(commands: Any) -> None:
    parser = _add(commands, "trim", records.trim, "remove the records before a sequence number")
    parser.add_argument("stream", metavar=STREAM, help="the stream")
    parser.add_argument("seq_num", metavar="SEQ_NUM", type=_u64, help="the first that stays")
    _add_conditions(parser)


def _add_fence(commands: Any) -> None:
    parser = _add(commands, "fence", records.fence, "set a stream's fencing token")
    parser.add_argument("stream", metavar=STREAM, help="the stream")
    parser.add_argument("new_token", metavar="TOKEN", help="the new token; '' takes it away")
    _add_conditions(parser)


def _add_bench(commands: Any) -> None:
    parser = _add(
        commands, "bench", _bench, "measure throughput and latency on a stream of its own"
    )
    parser.add_argument("basin", metavar="BASIN", help="the basin; the stream in it is temporary")
    parser.add_argument(
        "-b",
        "--record-size",
        metavar="SIZE",
        type=_record_size,
        default=BENCH_RECORD_BYTES,
        help=f"metered bytes of a record, its header included [{BENCH_RECORD_BYTES}]",
    )
    parser.add_argument(
        "-t", "--target-mibps", metavar="N", type=_rate, default=1, help="MiB/s to write [1]"
    )
    parser.add_argument(
        "-d",
        "--duration",
        metavar="TIME",
        type=_duration,
        default="60s",
        help="write so long [60s]",
    )
    parser.add_argument(
        "-w",
        "--catchup-delay",
        metavar="TIME",
        type=_duration,
        default="20s",
        help="wait so long before the stream is read again [20s]",
    )
    parser.add_argument("-c", "--storage-class", metavar="NAME", help="storage class of the stream")
    parser.add_argument(
        "--compression",
        choices=("none", "gzip", "zstd"),
        default="none",
        help="how frames are compressed, both ways [none]",
    )
    parser.add_argument(
        "--http", choices=("2", "1.1"), default="2", help="the version of HTTP to speak [2]"
    )


def _record_size(text: str) -> int:
    try:
        size = parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not BENCH_RECORD_BYTES_MIN <= size < RECORD_METERED_BYTES_MAX:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no record's size: write one from {BENCH_RECORD_BYTES_MIN} bytes to 1 MiB"
        )
    return size


def _rate(text: str) -> int:
    rate = _u64(text)
    if not rate:
        raise argparse.ArgumentTypeError("0 MiB/s would write nothing: write 1 or more")
    return rate


def _u64(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text) > U64_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 to {U64_MAX}")
    return int(text)


def _duration(text: str) -> int:
    try:
        return parse_duration_ns(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
