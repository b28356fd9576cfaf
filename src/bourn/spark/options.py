"""What the options of source and sink have in common: how they are read, and where they lead.

Spark hands options over in any case, so names are compared in lower case; errors name an option as
it is documented, and say what to write.
"""

import difflib
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final

from bourn.client import BadAddress, Retries, Settings
from bourn.client.settings import KEY_VARIABLE, TOKEN_VARIABLE
from bourn.errors import BadHeader, BadName
from bourn.limits import SOURCE_RETRY_SECS, SOURCE_RETRY_SECS_MAX
from bourn.model.config import Cipher
from bourn.model.keys import CustomerKey
from bourn.model.names import basin_name
from bourn.wire.compression import Compression

CONNECTION_OPTIONS: Final = (
    "endpoint",
    "basin",
    "accessToken",
    "encryptionKey",
    "compression",
    "retryTimeout",
)
COMPRESSIONS: Final = {
    "none": Compression.NONE,
    "zstd": Compression.ZSTD,
    "gzip": Compression.GZIP,
}
_TOKEN: Final = re.compile(r"[!-~]*")
_COUNT: Final = re.compile(r"[0-9]{1,20}")
_BOOLEANS: Final = {"true": True, "false": False}


class OptionError(ValueError):
    """An option is missing, unknown or wrong; the text names it and says what it takes."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(option, text)
        self.option = option
        self.text = text

    def __str__(self) -> str:
        return f"option {self.option}: {self.text}"


class Options:
    """Options as given, by their names in any case."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}

    def refuse_unknown(self, known: Iterable[str], sparks_own: Iterable[str] = ()) -> None:
        """Raise OptionError for a name that is not known, and name the nearest one that is."""
        names = {name.lower(): name for name in known}
        for name in self._given:
            if name not in names and name not in sparks_own:
                near = difflib.get_close_matches(name, names, n=1)
                hint = f"did you mean {names[near[0]]}?" if near else "it is none of "
                raise OptionError(
                    name, f"is not known: {hint}{'' if near else ', '.join(names.values())}"
                )

    def text(self, option: str) -> str | None:
        """Return an option, without blanks around it; None where it is not given, or empty."""
        value = self._given.get(option.lower(), "").strip()
        return value or None

    def choice(self, option: str, choices: Iterable[str], default: str) -> str:
        """Return one of some words."""
        value = (self.text(option) or default).lower()
        if value not in choices:
            raise OptionError(option, f"takes {' or '.join(choices)}, not {value!r}")
        return value

    def boolean(self, option: str, *, default: bool) -> bool:
        """Return true or false."""
        return _BOOLEANS[self.choice(option, _BOOLEANS, str(default).lower())]

    def count(self, option: str, most: int) -> int | None:
        """Return a number from 1 on; None where it is not given."""
        text = self.text(option)
        if text is None:
            return None
        if not _COUNT.fullmatch(text) or not 0 < int(text) <= most:
            raise OptionError(option, f"takes a number from 1 to {most}, not {text!r}")
        return int(text)

    def seconds(self, option: str, default: float, most: float) -> float:
        """Return some seconds."""
        text = self.text(option)
        if text is None:
            return default
        try:
            secs = float(text)
        except ValueError:
            secs = -1.0
        if not 0 <= secs <= most:
            raise OptionError(option, f"takes 0 to {most:.0f} seconds, not {text!r}")
        return secs

    def connection(self, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return where the streams are, and how to get there."""
        basin = self.text("basin")
        if basin is None:
            raise OptionError("basin", "is required: write the name of the basin")
        try:
            basin_name(basin)
        except BadName as error:
            raise OptionError("basin", f"{basin!r} names no basin: {error.message}") from None
        secs = self.seconds("retryTimeout", SOURCE_RETRY_SECS, SOURCE_RETRY_SECS_MAX)
        try:
            settings = Settings.of(
                basin,
                self.text("endpoint"),
                token=self.text("accessToken"),
                encryption_key=self.text("encryptionKey"),
                compression=COMPRESSIONS[self.choice("compression", COMPRESSIONS, "none")],
                # Pauses last a second, once they have grown.
                retries=Retries(attempts=3 + round(secs)),
                environ=environ,
                origin="option endpoint",
            )
        except BadAddress as error:
            raise OptionError("endpoint", error.message.removeprefix("option endpoint: ")) from None
        _check_secrets(settings)
        return settings


def _check_secrets(settings: Settings) -> None:
    """Refuse a token or a key that no request can carry; neither is shown."""
    if not _TOKEN.fullmatch(settings.token):
        raise OptionError(
            "accessToken",
            f"takes visible ASCII characters without blanks, as {TOKEN_VARIABLE} does",
        )
    if settings.encryption_key:
        try:
            CustomerKey(settings.encryption_key).decode(Cipher.AEGIS_256)
        except BadHeader:
            raise OptionError(
                "encryptionKey", f"takes 32 bytes as base64, as {KEY_VARIABLE} does"
            ) from None
