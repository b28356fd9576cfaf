"""The settings of `bourn serve`: one table for flags, variables, the file, the help and the docs.

name          flag             variable             key in the file
tls_cert      --tls-cert       BOURN_TLS_CERT       tls_cert
"""

import re
from collections.abc import Callable
from typing import Final, NamedTuple

from bourn.cli.units import parse_duration_ns, parse_interval_ms, parse_size
from bourn.limits import ROOT_TOKEN_CHARS_MAX, ROOT_TOKEN_CHARS_MIN
from bourn.settings import EDGES, LOG_LEVELS, UsagePrices

_DOMAIN: Final = re.compile(r"(?!-)[a-z0-9-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9-]{1,63}(?<!-))*")
_TRUTH: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_DIGITS_MAX: Final = 9
_NS_PER_SEC: Final = 10**9
_PRICE: Final = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_PRICES: Final = {
    "append": "append_gib",
    "read": "read_gib",
    "storage": "storage_gib_month",
    "operations": "operations_million",
}
_TOKEN: Final = re.compile(r"[\x21-\x7e]+")


class Setting(NamedTuple):
    """One thing that the server can be told. `read` raises ValueError with what to write."""

    name: str
    read: Callable[[str], object]
    metavar: str  # empty for a switch
    default: str  # as people see it
    help: str
    engine_field: str = ""  # of EngineSettings, where it belongs there
    is_list: bool = False
    can_be_off: bool = False  # a switch with a --no- form
    needs_others: bool = False  # right or wrong only together with others

    @property
    def flag(self) -> str:
        """The flag on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The variable in the environment."""
        return "BOURN_" + self.name.upper()

    @property
    def is_switch(self) -> bool:
        """Whether it is true or false."""
        return not self.metavar


def _text(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError("is empty: give it a value, or leave it out")
    return text


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or len(text) > _DIGITS_MAX:
        raise ValueError(f"{text!r} is no whole number: write digits alone")
    return int(text)


def _secs(text: str) -> float:
    return parse_duration_ns(text) / _NS_PER_SEC


def _truth(text: str) -> bool:
    try:
        return _TRUTH[text.lower()]
    except KeyError:
        raise ValueError(f"{text!r} is neither true nor false: write one of them") from None


def _domain(text: str) -> str:
    domain = text.lower().removeprefix("*.").removeprefix("{basin}.").removeprefix(".")
    if not _DOMAIN.fullmatch(domain):
        raise ValueError(f"{text!r} is no domain: write one such as b.example.com")
    return domain


def _level(text: str) -> str:
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"{text!r} is no level: write one of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _root_token(text: str) -> str:
    if not ROOT_TOKEN_CHARS_MIN <= len(text) <= ROOT_TOKEN_CHARS_MAX or not _TOKEN.fullmatch(text):
        raise ValueError(
            f"is no root token: write {ROOT_TOKEN_CHARS_MIN} to {ROOT_TOKEN_CHARS_MAX} visible "
            "ASCII characters without spaces"
        )
    return text


def _edge(text: str) -> str:
    if text.lower() not in EDGES:
        raise ValueError(f"{text!r} is no edge: write one of {', '.join(EDGES)}")
    return text.lower()


def _prices(text: str) -> UsagePrices:
    remedy = "write prices such as append=0.05,read=0.08,storage=0.05,operations=1"
    found: dict[str, float] = {}
    for part in text.split(","):
        name, _, price = part.strip().partition("=")
        if name not in _PRICES or _PRICES[name] in found or not _PRICE.fullmatch(price):
            raise ValueError(f"{part.strip()!r} is no price: {remedy}")
        found[_PRICES[name]] = float(price)
    return UsagePrices(**found)


def _limits(scope: str, where: str) -> tuple[Setting, ...]:
    return (
        Setting(f"limit_{scope}_requests", _number, "N", "none", f"requests a second {where}"),
        Setting(
            f"limit_{scope}_append_bytes",
            parse_size,
            "SIZE",
            "none",
            f"metered bytes appended a second {where}",
        ),
        Setting(f"limit_{scope}_sessions", _number, "N", "none", f"sessions open at once {where}"),
    )


def _quota(what: str, text: str) -> Setting:
    name = f"quota_{what}"
    return Setting(name, _number, "N", "none", text, engine_field=name)


SETTINGS: Final = (
    Setting("host", _text, "ADDRESS", "127.0.0.1", "address to listen on; 0.0.0.0 for all"),
    Setting("port", _number, "PORT", "8080", "port to listen on; 0 for any free one"),
    Setting("edge", _edge, "EDGE", "native", "HTTP by our own loop, or asgi: by granian"),
    Setting(
        "bucket",
        _text,
        "URL",
        "./bourn-data",
        "where the data lies: a directory, s3://bucket, gs://bucket, az://container or memory:",
    ),
    Setting("memory", _truth, "", "off", "keep everything in memory, gone at the end: an emulator"),
    Setting("path", _text, "PREFIX", "none", "use only this part of the bucket"),
    Setting(
        "flush_interval",
        parse_interval_ms,
        "TIME",
        "0 (20ms on remote buckets)",
        "least time between two small commits; a bare number is milliseconds",
        engine_field="flush_interval_ms",
    ),
    Setting(
        "append_inflight_bytes",
        parse_size,
        "SIZE",
        "128MiB",
        "bytes admitted but not yet durable; above it appends wait",
        engine_field="append_inflight_bytes",
    ),
    Setting(
        "commits_in_flight",
        _number,
        "N",
        "8 (32 on remote buckets)",
        "commits on their way to the bucket at once",
        engine_field="commits_in_flight",
    ),
    Setting(
        "tail_cache_bytes",
        parse_size,
        "SIZE",
        "96MiB (256MiB on remote buckets without a spool)",
        "newest records kept in memory for readers",
        engine_field="tail_cache_bytes",
    ),
    Setting(
        "spool_bytes",
        parse_size,
        "SIZE",
        "1GiB",
        "newest commits of a remote bucket kept on this machine's disk for readers; 0 for none",
    ),
    Setting(
        "spool_directory",
        _text,
        "DIR",
        "the system's for temporary files",
        "where that file lies; nameless, and gone with the server",
    ),
    Setting(
        "location",
        _text,
        "NAME",
        "local",
        "the one location that basins of this server have",
        engine_field="location",
    ),
    Setting(
        "basin_domain",
        _domain,
        "DOMAIN",
        "none",
        "take BASIN.DOMAIN as a request's host for its basin; may be given again",
        is_list=True,
    ),
    Setting("tls_cert", _text, "FILE", "none", "certificate chain in PEM form", needs_others=True),
    Setting("tls_key", _text, "FILE", "none", "private key in PEM form", needs_others=True),
    Setting(
        "tls_self",
        _truth,
        "",
        "off",
        "speak TLS with a self-signed certificate made at the start",
        can_be_off=True,
        needs_others=True,
    ),
    Setting("init_file", _text, "FILE", "none", "basins and streams to have before listening"),
    Setting("cors", _truth, "", "on", "let web pages of any origin call", can_be_off=True),
    Setting(
        "auth",
        _truth,
        "",
        "on (off on loopback, as long as there is no root token)",
        "ask every request for a token",
        can_be_off=True,
        needs_others=True,
    ),
    Setting(
        "root_token",
        _root_token,
        "TOKEN",
        "made at the first start",
        "the token that may do everything; better as a variable",
        needs_others=True,
    ),
    Setting("audit_log", _text, "FILE", "none", "where refusals and changes are noted; - stderr"),
    Setting(
        "usage_prices",
        _prices,
        "PRICES",
        "none",
        "US dollars a GiB appended, read, stored a month, a million operations: append=0.05,read=…",
    ),
    *_limits("basin", "in each basin"),
    *_limits("token", "by each access token"),
    _quota("basins", "basins that there may be"),
    _quota("streams_per_basin", "streams that a basin may have"),
    _quota("tokens", "access tokens that there may be, beside the root token"),
    Setting(
        "pipeline",
        _text,
        "PLACE",
        "local (off in memory, and without the pipeline extra)",
        "where the log becomes the history table: local, local[2], a Spark master, or off",
    ),
    Setting(
        "pipeline_backlog",
        parse_size,
        "SIZE",
        "64MiB",
        "the pipeline begins once so much of the log waits for it",
    ),
    Setting(
        "pipeline_age",
        _secs,
        "TIME",
        "60s",
        "the pipeline begins once something has waited for it so long",
    ),
    Setting("log_level", _level, "LEVEL", "info", f"one of {', '.join(LOG_LEVELS)}"),
)
BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
