"""`bourn basin …` and `bourn stream …`: list, create, delete, look at and change configs."""

import argparse
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import orjson

from bourn.cli import render
from bourn.cli.address import SCHEME, parse_basin, parse_stream
from bourn.cli.client import Client, account_client, basin_client
from bourn.cli.failures import DONE, Misused
from bourn.cli.units import parse_duration_secs

CLEARED: Final = "default"  # what gives a member back to the defaults
TIMESTAMP_MODES: Final = ("client-prefer", "client-require", "arrival")
CIPHERS: Final = ("aegis-256", "aes-256-gcm")

Shape = dict[str, Any]


def list_basins(arguments: argparse.Namespace) -> int:
    """`bourn basin list`."""
    query = {"prefix": arguments.prefix or ""}
    with account_client(arguments.endpoint) as client:
        _show_list(client.listed("/basins", query, arguments.limit), arguments)
    return DONE


def list_streams(arguments: argparse.Namespace) -> int:
    """`bourn stream list`; what stands behind the basin is a prefix, as in `s2://basin/logs/`."""
    basin, _, prefix = arguments.basin.removeprefix(SCHEME).partition("/")
    if prefix and arguments.prefix:
        raise Misused("give the prefix once: behind the basin, or by --prefix")
    query = {"prefix": prefix or arguments.prefix or ""}
    with basin_client(arguments.endpoint, parse_basin(basin)) as client:
        _show_list(client.listed("/streams", query, arguments.limit), arguments)
    return DONE


def create_basin(arguments: argparse.Namespace) -> int:
    """`bourn basin create`."""
    name = parse_basin(arguments.basin)
    body = {"basin": name, "config": basin_shape(arguments)}
    with account_client(arguments.endpoint) as client:
        info = client.call("POST", "/basins", orjson.dumps(body)).body
    _show_info(info, f"created basin {name}", arguments)
    return DONE


def create_stream(arguments: argparse.Namespace) -> int:
    """`bourn stream create`."""
    address = parse_stream(arguments.stream)
    body = {"stream": address.stream, "config": stream_shape(arguments)}
    with basin_client(arguments.endpoint, address.basin) as client:
        info = client.call("POST", "/streams", orjson.dumps(body)).body
    _show_info(info, f"created stream {address}", arguments)
    return DONE


def delete_basin(arguments: argparse.Namespace) -> int:
    """`bourn basin delete`."""
    name = parse_basin(arguments.basin)
    with account_client(arguments.endpoint) as client:
        client.call("DELETE", _basin_path(name))
    _show_info({"deleted": name}, f"deleting basin {name} and all its streams", arguments)
    return DONE


def delete_stream(arguments: argparse.Namespace) -> int:
    """`bourn stream delete`."""
    address = parse_stream(arguments.stream)
    with basin_client(arguments.endpoint, address.basin) as client:
        client.call("DELETE", stream_path(address.stream))
    _show_info({"deleted": str(address)}, f"deleting stream {address}", arguments)
    return DONE


def configure_basin(arguments: argparse.Namespace) -> int:
    """`bourn basin config`."""
    path, changes = _basin_path(parse_basin(arguments.basin)), basin_shape(arguments)
    with account_client(arguments.endpoint) as client:
        return _configure(client, path, changes, arguments)


def configure_stream(arguments: argparse.Namespace) -> int:
    """`bourn stream config`."""
    address, changes = parse_stream(arguments.stream), stream_shape(arguments)
    with basin_client(arguments.endpoint, address.basin) as client:
        return _configure(client, stream_path(address.stream), changes, arguments)


def _configure(client: Client, path: str, changes: Shape, arguments: argparse.Namespace) -> int:
    if changes:
        config = client.call("PATCH", path, orjson.dumps(changes)).body
    else:
        config = client.call("GET", path).body
    if arguments.json:
        render.json_line(config)
    else:
        render.config(config)
    return DONE


def stream_path(stream: str) -> str:
    """Return the path of a stream; its name is one segment, whatever it holds."""
    return f"/streams/{quote(stream, safe='')}"


def _basin_path(basin: str) -> str:
    return f"/basins/{basin}"


def basin_shape(arguments: argparse.Namespace) -> Shape:
    """Return the members of a basin's config that the options set, as the API takes them."""
    shape: Shape = {}
    default = stream_shape(arguments)
    if default:
        shape["default_stream_config"] = default
    if arguments.cipher is not None:
        shape["stream_cipher"] = None if arguments.cipher == "none" else arguments.cipher
    for name in ("create_stream_on_append", "create_stream_on_read"):
        if getattr(arguments, name) is not None:
            shape[name] = getattr(arguments, name)
    return shape


def stream_shape(arguments: argparse.Namespace) -> Shape:
    """Return the members of a stream's config that the options set, as the API takes them."""
    shape: Shape = {}
    timestamping: Shape = {}
    if arguments.retention is not None:
        shape["retention_policy"] = _cleared_or(_retention, arguments.retention, "--retention")
    if arguments.storage_class is not None:
        shape["storage_class"] = _cleared_or(str, arguments.storage_class, "--storage-class")
    if arguments.delete_on_empty is not None:
        shape["delete_on_empty"] = _cleared_or(
            _min_age, arguments.delete_on_empty, "--delete-on-empty"
        )
    if arguments.timestamping is not None:
        timestamping["mode"] = _cleared_or(str, arguments.timestamping, "--timestamping")
    if arguments.uncapped is not None:
        timestamping["uncapped"] = arguments.uncapped
    if timestamping:
        shape["timestamping"] = timestamping
    return shape


def _cleared_or(read: Callable[[str], object], text: str, flag: str) -> object:
    if text == CLEARED:
        return None
    try:
        return read(text)
    except ValueError as error:
        raise Misused(f"{flag}: {error}") from None


def _retention(text: str) -> Shape:
    return {"infinite": {}} if text == "infinite" else {"age": parse_duration_secs(text)}


def _min_age(text: str) -> Shape:
    return {"min_age_secs": parse_duration_secs(text)}


def _show_list(items: Iterator[Any], arguments: argparse.Namespace) -> None:
    if arguments.json:
        for item in items:
            render.json_line(item)
        return
    rows = [
        (item["name"], item["created_at"], "deleting" if item["deleted_at"] else "active")
        for item in items
    ]
    render.table(("name", "created", "state"), rows)


def _show_info(info: Any, text: str, arguments: argparse.Namespace) -> None:
    if arguments.json:
        render.json_line(info)
    else:
        render.line(render.printable(text))
