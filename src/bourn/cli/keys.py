"""Keys of encrypted streams: out of a file or a variable, never a flag, which others could see."""

import argparse
import os
from pathlib import Path
from typing import Any, Final

from bourn.cli.failures import Misused
from bourn.limits import ENCRYPTION_KEY_CHARS_MAX, KIB

KEY_VARIABLE: Final = "S2_ENCRYPTION_KEY"
KEY_FILE_BYTES_MAX: Final = KIB


def add_key_option(parser: Any) -> None:
    """Let a command that appends or reads be told where the key is."""
    parser.add_argument(
        "--encryption-key-file",
        metavar="FILE",
        help=f"where the stream's key is, in base64; else {KEY_VARIABLE}",
    )


def key_headers(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the header that carries the key; nothing where there is none."""
    key = key_in(arguments)
    return {"s2-encryption-key": key} if key else {}


def key_in(arguments: argparse.Namespace) -> str:
    """Return the key; nothing where there is none."""
    name: str | None = arguments.encryption_key_file
    if name is None:
        text = os.environ.get(KEY_VARIABLE, "")
        return _checked(text, KEY_VARIABLE) if text else ""
    try:
        with Path(name).open("rb") as file:
            data = file.read(KEY_FILE_BYTES_MAX)
    except OSError as error:
        raise Misused(f"cannot read {name}: {error.strerror}: name another file") from None
    return _checked(data.decode("ascii", "replace"), name)


def _checked(text: str, origin: str) -> str:
    """Keep what a header cannot carry from being sent; the server judges the rest."""
    key = text.strip()
    if not key.isascii() or len(key.split()) != 1 or len(key) > ENCRYPTION_KEY_CHARS_MAX:
        raise Misused(f"{origin} holds no key: write 32 bytes as base64, 44 characters")
    return key
