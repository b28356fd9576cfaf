"""`bourn token …`: issue, list and revoke access tokens.

A set of names is written `=name` for one, `text` for all that begin so, `''` for all.
"""

import argparse
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import quote

import orjson

from bourn.cli import render
from bourn.cli.client import account_client
from bourn.cli.failures import DONE, Misused
from bourn.clock import SystemClock
from bourn.errors import BadJson
from bourn.model.access import Op
from bourn.model.instants import format_ns, parse_ns

GROUPS: Final = ("account", "basin", "stream")
SETS: Final = ("basins", "streams", "access_tokens")
_HALVES: Final = {"r": "read", "w": "write"}

Add = Callable[..., argparse.ArgumentParser]


def add_commands(
    group: Any, add: Add, add_list_options: Callable[[Any], None], duration: Callable[[str], int]
) -> None:
    """Add the commands to a parser, in the way in which it adds commands."""
    issue = add(group, "issue", issue_token, "issue an access token and print its secret, once")
    what = "=NAME for one, TEXT for all that begin so, '' for all [none]"
    issue.add_argument("--basins", metavar="SET", help=f"the basins that it is for: {what}")
    issue.add_argument("--streams", metavar="SET", help=f"the streams that it is for: {what}")
    issue.add_argument("--access-tokens", metavar="SET", help=f"the tokens that it is for: {what}")
    issue.add_argument(
        "--op-groups", metavar="LIST", help="groups of operations: account=rw,basin=r,stream=rw"
    )
    issue.add_argument("--ops", metavar="LIST", help="single operations: append,read,check-tail")
    issue.add_argument(
        "--auto-prefix-streams",
        action="store_true",
        help="put the prefix of --streams before every stream's name, unseen",
    )
    end = issue.add_mutually_exclusive_group()
    end.add_argument("--expires-in", metavar="TIME", type=duration, help="its life: 30days, 1h")
    end.add_argument("--expires-at", metavar="TIME", help="its end: 2030-01-01T00:00:00Z")
    listing = add(group, "list", list_tokens, "list access tokens, without their secrets")
    add_list_options(listing)
    revoke = add(group, "revoke", revoke_token, "revoke an access token")
    for parser in (issue, revoke):
        parser.add_argument("id", metavar="ID", help="its name, 1 to 96 bytes")


def issue_token(arguments: argparse.Namespace) -> int:
    """`bourn token issue`."""
    body = token_shape(arguments)
    with account_client(arguments.endpoint) as client:
        issued = client.call("POST", "/access-tokens", orjson.dumps(body)).body
    if arguments.json:
        render.json_line(issued)
    else:
        render.note(f"issued access token {render.printable(arguments.id)}; this is its secret:")
        render.line(issued["access_token"])
    return DONE


def list_tokens(arguments: argparse.Namespace) -> int:
    """`bourn token list`."""
    query = {"prefix": arguments.prefix or ""}
    with account_client(arguments.endpoint) as client:
        items = client.listed("/access-tokens", query, arguments.limit)
        if arguments.json:
            for item in items:
                render.json_line(item)
        else:
            columns = ("id", "expires", "basins", "streams", "tokens", "may")
            render.table(columns, map(_row, items))
    return DONE


def revoke_token(arguments: argparse.Namespace) -> int:
    """`bourn token revoke`."""
    with account_client(arguments.endpoint) as client:
        client.call("DELETE", f"/access-tokens/{quote(arguments.id, safe='')}")
    if arguments.json:
        render.json_line({"revoked": arguments.id})
    else:
        render.line(render.printable(f"revoked access token {arguments.id}"))
    return DONE


def token_shape(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the token that the options ask for, as the API takes it."""
    scope: dict[str, Any] = {
        name: _set_shape(text) for name in SETS if (text := getattr(arguments, name)) is not None
    }
    if arguments.op_groups:
        scope["op_groups"] = _groups(arguments.op_groups)
    if arguments.ops:
        scope["ops"] = _ops(arguments.ops)
    if not arguments.op_groups and not arguments.ops:
        raise Misused("a token that may do nothing is none: give --op-groups or --ops")
    shape: dict[str, Any] = {"id": arguments.id, "scope": scope}
    if arguments.auto_prefix_streams:
        shape["auto_prefix_streams"] = True
    if arguments.expires_in is not None:
        now_ns = SystemClock().now_ms() * 1_000_000
        try:
            shape["expires_at"] = format_ns(now_ns + arguments.expires_in)
        except (OverflowError, ValueError):
            raise Misused("--expires-in: that is beyond the year 9999: leave it out") from None
    if arguments.expires_at is not None:
        shape["expires_at"] = _instant(arguments.expires_at)
    return shape


def _instant(text: str) -> str:
    try:
        return format_ns(parse_ns(text))
    except BadJson as error:
        raise Misused(f"--expires-at: {error.message}") from None


def _set_shape(text: str) -> dict[str, str]:
    return {"exact": text[1:]} if text.startswith("=") else {"prefix": text}


def _groups(text: str) -> dict[str, dict[str, bool]]:
    found: dict[str, dict[str, bool]] = {}
    for part in text.split(","):
        group, _, halves = part.strip().partition("=")
        if group not in GROUPS or not halves or not set(halves) <= set(_HALVES) or group in found:
            raise Misused(
                f"--op-groups: {part.strip()!r} is no group: write account, basin or stream, each "
                "once, with =r, =w or =rw"
            )
        found[group] = {name: letter in halves for letter, name in _HALVES.items()}
    return found


def _ops(text: str) -> list[str]:
    known = {op.value for op in Op}
    ops = [part.strip() for part in text.split(",")]
    for op in ops:
        if op not in known:
            raise Misused(
                f"--ops: {op!r} is no operation: write some of {', '.join(sorted(known))}"
            )
    return ops


def _row(item: dict[str, Any]) -> tuple[str, ...]:
    scope = item["scope"]
    groups = scope["op_groups"] or {}
    may = [
        f"{group}={halves}"
        for group in GROUPS
        if (halves := "".join(c for c, name in _HALVES.items() if groups.get(group, {}).get(name)))
    ]
    streams = _shown_set(scope["streams"])
    return (
        item["id"],
        item["expires_at"] or "never",
        _shown_set(scope["basins"]),
        f"{streams} (prefixed)" if item["auto_prefix_streams"] else streams,
        _shown_set(scope["access_tokens"]),
        ",".join([*may, *scope["ops"]]),
    )


def _shown_set(found: dict[str, str] | None) -> str:
    match found:
        case {"exact": str(name)}:
            return f"={name}"
        case {"prefix": ""}:
            return "all"
        case {"prefix": str(text)}:
            return f"{text}…"
    return "none"
