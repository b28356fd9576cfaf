"""Finds the server's settings: flag before variable before file before default.

Only the value that counts is read; what it overrides is not looked at. A key or a BOURN_ variable
that nobody knows is a mistake, whatever its value.
"""

import argparse
import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bourn.cli.failures import Misused
from bourn.cli.options import BY_NAME, SETTINGS, Setting
from bourn.settings import EngineSettings, ServeSettings

CONFIG_VARIABLE: Final = "BOURN_CONFIG"
CONFIG_FILE: Final = "bourn.toml"
CONFIG_BYTES_MAX: Final = 1 << 20
MEMORY: Final = "memory:"

_NUMERIC: Final = frozenset({"PORT", "TIME", "SIZE", "N"})  # metavars of what may be a bare number

# What Kubernetes puts into the environment for a service of the name `bourn`, and what our own
# tests are told by.
_NOT_OURS: Final = re.compile(r"BOURN_(?:SERVICE|PORT|TEST)_\w+")
_SERVICE_LINK: Final = re.compile(r"tcp://|udp://|sctp://")


class Given(NamedTuple):
    """A setting's values as they were given, and where."""

    values: list[str]
    origin: str


Layer = dict[str, Given]


def load_settings(
    arguments: argparse.Namespace, environ: Mapping[str, str], directory: Path
) -> ServeSettings:
    """Return what counts of flags, environment and file; Misused, with the place, if it is wrong.

    `arguments` has an attribute for each setting, None where its flag was not given.
    """
    from_environment = _environment(environ)
    file = arguments.config or environ.get(CONFIG_VARIABLE, "")
    layers = (_flags(arguments), from_environment, _file(file, directory))
    serve: dict[str, Any] = {}
    engine: dict[str, Any] = {}
    for setting in SETTINGS:
        given = next((layer[setting.name] for layer in layers if setting.name in layer), None)
        if given is None:
            continue
        value = _read(setting, given)
        _check_alone(setting, value, given.origin)
        if setting.engine_field:
            engine[setting.engine_field] = value
        else:
            serve[setting.name] = value
    try:
        return ServeSettings(**serve, engine=EngineSettings(**engine))
    except ValueError as error:
        raise Misused(str(error)) from None


def _read(setting: Setting, given: Given) -> Any:
    try:
        values = [setting.read(value) for value in given.values]
    except ValueError as error:
        raise Misused(f"{given.origin}: {error}") from None
    if setting.is_list:
        return tuple(dict.fromkeys(values))
    if len(values) != 1:
        raise Misused(f"{given.origin}: takes one value")
    return values[0]


def _check_alone(setting: Setting, value: Any, origin: str) -> None:
    """Let the value's own rule speak where the place that it came from is still known."""
    if setting.needs_others:
        return
    try:
        if setting.engine_field:
            EngineSettings(**{setting.engine_field: value})
        else:
            ServeSettings(**{setting.name: value})
    except ValueError as error:
        raise Misused(f"{origin}: {error}") from None


def _flags(arguments: argparse.Namespace) -> Layer:
    layer: Layer = {}
    for setting in SETTINGS:
        value = getattr(arguments, setting.name)
        if value is None:
            continue
        if isinstance(value, bool):
            value = "true" if value else "false"
        values = value if isinstance(value, list) else [value]
        layer[setting.name] = Given(values, setting.flag)
    return _without_memory(layer)


def _environment(environ: Mapping[str, str]) -> Layer:
    by_variable = {setting.variable: setting for setting in SETTINGS}
    layer: Layer = {}
    for variable, text in environ.items():
        if not variable.startswith("BOURN_") or variable == CONFIG_VARIABLE:
            continue
        setting = by_variable.get(variable)
        if setting is None:
            if _NOT_OURS.fullmatch(variable) is None:
                raise Misused(_unknown(variable, "variable", by_variable))
            continue
        if not text or (setting.name == "port" and _SERVICE_LINK.match(text)):
            continue
        values = [part.strip() for part in text.split(",")] if setting.is_list else [text]
        layer[setting.name] = Given(values, variable)
    return _without_memory(layer)


def _file(name: str, directory: Path) -> Layer:
    path = directory / (name or CONFIG_FILE)
    if not name and not path.exists():
        return {}
    shown = name or CONFIG_FILE
    try:
        with path.open("rb") as file:
            text = file.read(CONFIG_BYTES_MAX + 1)
        if len(text) > CONFIG_BYTES_MAX:
            raise Misused(f"{shown} is larger than a file of settings can be: name another one")
        document = tomllib.loads(text.decode())
    except OSError as error:
        why = error.strerror or "unreadable"
        raise Misused(f"cannot read the settings in {shown}: {why}: name another file") from None
    except ValueError as error:  # of tomllib, and of text that is not UTF-8
        raise Misused(f"{shown} is not TOML: {error}") from None
    layer: Layer = {}
    for key, value in document.items():
        setting = BY_NAME.get(key)
        if setting is None:
            raise Misused(_unknown(key, f"setting in {shown}", BY_NAME))
        layer[key] = Given(_texts(setting, value, f"{key} in {shown}"), f"{key} in {shown}")
    return _without_memory(layer)


def _texts(setting: Setting, value: object, origin: str) -> list[str]:
    """Return a value of the file as the text that a flag would have."""
    if isinstance(value, bool) and setting.is_switch:
        return ["true" if value else "false"]
    if isinstance(value, list) and setting.is_list and all(isinstance(item, str) for item in value):
        return value
    if isinstance(value, str) and not setting.is_switch:
        return [value]
    if isinstance(value, int) and not isinstance(value, bool) and setting.metavar in _NUMERIC:
        return [str(value)]
    wanted = "true or false" if setting.is_switch else "text in quotes"
    if setting.metavar in _NUMERIC:
        wanted = "a number, or text in quotes"
    raise Misused(f"{origin}: write {wanted}")


def _without_memory(layer: Layer) -> Layer:
    """Turn `memory` into the bucket that it stands for, so that it ranks with its layer."""
    given = layer.pop("memory", None)
    if given is None or not _read(BY_NAME["memory"], given):
        return layer
    if "bucket" in layer:
        raise Misused(
            f"{given.origin} and {layer['bucket'].origin} exclude each other: keep one of them"
        )
    layer["bucket"] = Given([MEMORY], given.origin)
    return layer


def _unknown(name: str, what: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    remedy = f"did you mean {close[0]}?" if close else "docs/settings.md lists all"
    return f"{name} is no {what}: {remedy}"
