"""Who may use the server that is about to start: its root token, its open mode, its audit log."""

import ipaddress
import logging
import logging.handlers
import os
import sys
from pathlib import Path
from typing import Final, NamedTuple

from bourn.catalog.tokens import digest_of
from bourn.cli import render
from bourn.cli.failures import Misused
from bourn.engine.node import Node
from bourn.http.audit import log as audit_log
from bourn.http.tokens import new_secret
from bourn.settings import ServeSettings

STDERR: Final = "-"
_OFF: Final = logging.CRITICAL + 1


class Access(NamedTuple):
    """Whether requests need a token, and what to say of it."""

    is_required: bool
    secret: str  # of a root token that was made just now, to be shown this once; else empty
    note: str


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


async def prepare_access(node: Node, settings: ServeSettings) -> Access:
    """Have the root token in the log before anybody is served.

    Without a word from the settings, tokens are needed as soon as others than this machine can
    reach the server, or once the bucket has a root token: a server must not open itself because a
    setting was forgotten.
    """
    known = await node.root_token()
    has_secret = known is not None and bool(known.digest)
    required = settings.auth
    if required is None:
        required = bool(settings.root_token) or has_secret or not is_loopback(settings.host)
    if not required:
        if known is None:
            await node.set_root_token(b"")
        note = "open: no token is asked for, so whoever reaches this port may do everything"
        return Access(is_required=False, secret="", note=note)
    if settings.root_token:
        await node.set_root_token(digest_of(settings.root_token.encode()))
        note = "every request needs a token; root_token says the root token"
        return Access(is_required=True, secret="", note=note)
    if has_secret:
        note = "every request needs a token; the root token is the one of an earlier start"
        return Access(is_required=True, secret="", note=note)
    secret = new_secret()
    await node.set_root_token(digest_of(secret.encode()))
    note = "every request needs a token; the root token is new, and shown this once: keep it"
    return Access(is_required=True, secret=secret, note=note)


def say_access(access: Access) -> None:
    """Say which mode is on, and a new root token as the line that scripts look for."""
    render.note(access.note)
    if access.secret:
        render.line(f'export S2_ACCESS_TOKEN="{access.secret}"')


def open_audit_log(target: str) -> None:
    """Let the audit log go to a file, to standard error, or nowhere."""
    for handler in list(audit_log.handlers):
        audit_log.removeHandler(handler)
        handler.close()
    audit_log.propagate = False
    audit_log.setLevel(logging.INFO if target else _OFF)
    if target:
        audit_log.addHandler(_handler(target))


def _handler(target: str) -> logging.Handler:
    handler: logging.Handler
    if target == STDERR:
        handler = logging.StreamHandler(sys.stderr)
    else:
        try:
            # Made by hand, so that nobody else may read it; moved away, it is made anew.
            os.close(os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
            handler = logging.handlers.WatchedFileHandler(Path(target))
        except OSError as error:
            why = error.strerror or "it cannot be opened"
            raise Misused(f"audit_log {target}: {why}: name another file") from None
    handler.setFormatter(logging.Formatter("%(message)s"))
    return handler
