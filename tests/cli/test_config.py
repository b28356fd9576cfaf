"""Where the server's settings come from, and which of them counts."""

import msgspec
import pytest

from bourn.cli.config import load_settings
from bourn.cli.failures import Misused
from bourn.cli.options import SETTINGS
from bourn.cli.parser import make_parser
from bourn.cli.units import parse_interval_ms, parse_size
from bourn.settings import EngineSettings, ServeSettings, UsagePrices

# For each setting: what the file says, what the variable says, what the flag says.
VALUES = {
    "host": ('"10.0.0.1"', "10.0.0.2", "10.0.0.3"),
    "port": ("1001", "1002", "1003"),
    "edge": ('"asgi"', "native", "asgi"),
    "bucket": ('"s3://one"', "s3://two", "s3://three"),
    "path": ('"a"', "b", "c"),
    "flush_interval": ("11", "12ms", "13"),
    "append_inflight_bytes": ('"2MiB"', "3MiB", "4194304"),
    "commits_in_flight": ("2", "3", "4"),
    "tail_cache_bytes": ("1048576", "2MiB", "3MB"),
    "spool_bytes": ('"64MiB"', "128MiB", "0"),
    "spool_directory": ('"a"', "b", "c"),
    "location": ('"one"', "two", "three"),
    "basin_domain": ('["a.example", "b.example"]', "c.example,d.example", "e.example"),
    "tls_cert": ('"a.pem"', "b.pem", "c.pem"),
    "tls_key": ('"a.key"', "b.key", "c.key"),
    "init_file": ('"a.json"', "b.json", "c.json"),
    "root_token": ('"token-1-of-16-chars"', "token-2-of-16-chars", "token-3-of-16-chars"),
    "audit_log": ('"a.log"', "b.log", "-"),
    "usage_prices": ('"append=1"', "read=0.5,storage=2", "operations=3.25"),
    "limit_basin_requests": ("1", "2", "3"),
    "limit_basin_append_bytes": ('"1MiB"', "2MiB", "65536"),
    "limit_basin_sessions": ("4", "5", "6"),
    "limit_token_requests": ("7", "8", "9"),
    "limit_token_append_bytes": ("1048576", "3MiB", "64KiB"),
    "limit_token_sessions": ("10", "11", "12"),
    "quota_basins": ("0", "100", "101"),
    "quota_streams_per_basin": ("13", "14", "15"),
    "quota_tokens": ("16", "0", "17"),
    "pipeline": ('"off"', "local[2]", "spark://host:7077"),
    "pipeline_backlog": ('"1MiB"', "2MiB", "3000"),
    "pipeline_age": ('"5s"', "2m", "1500ms"),
    "log_level": ('"debug"', "warning", "error"),
}
WANTED = {
    "flush_interval": (11, 12, 13),
    "append_inflight_bytes": (2 << 20, 3 << 20, 4 << 20),
    "tail_cache_bytes": (1 << 20, 2 << 20, 3_000_000),
    "spool_bytes": (64 << 20, 128 << 20, 0),
    "basin_domain": (("a.example", "b.example"), ("c.example", "d.example"), ("e.example",)),
    "port": (1001, 1002, 1003),
    "commits_in_flight": (2, 3, 4),
    "limit_basin_requests": (1, 2, 3),
    "limit_basin_append_bytes": (1 << 20, 2 << 20, 1 << 16),
    "limit_basin_sessions": (4, 5, 6),
    "limit_token_requests": (7, 8, 9),
    "limit_token_append_bytes": (1 << 20, 3 << 20, 1 << 16),
    "limit_token_sessions": (10, 11, 12),
    "quota_basins": (0, 100, 101),
    "quota_streams_per_basin": (13, 14, 15),
    "quota_tokens": (16, 0, 17),
    "pipeline_backlog": (1 << 20, 2 << 20, 3000),
    "pipeline_age": (5.0, 120.0, 1.5),
    "usage_prices": (
        UsagePrices(append_gib=1),
        UsagePrices(read_gib=0.5, storage_gib_month=2),
        UsagePrices(operations_million=3.25),
    ),
}
# Settings that are right only together with another one.
PARTNER = {"tls_cert": ["--tls-key", "k"], "tls_key": ["--tls-cert", "c"]}


def load(directory, *flags, **variables):
    arguments = make_parser().parse_args(["serve", *flags])
    return load_settings(arguments, variables, directory)


def value_of(settings, name):
    setting = next(one for one in SETTINGS if one.name == name)
    if setting.engine_field:
        return getattr(settings.engine, setting.engine_field)
    return getattr(settings, name)


def test_every_setting_is_tried():
    switches = {setting.name for setting in SETTINGS if setting.is_switch}
    assert switches == {"memory", "tls_self", "cors", "auth"}
    assert VALUES.keys() | switches == {setting.name for setting in SETTINGS}


@pytest.mark.parametrize("name", VALUES)
def test_a_flag_goes_before_a_variable_before_the_file(tmp_path, name):
    file, variable, flag = VALUES[name]
    wanted = WANTED.get(name, (file.strip('"'), variable, flag))
    (tmp_path / "bourn.toml").write_text(f"{name} = {file}\n")
    flags = ["--" + name.replace("_", "-"), flag]
    variables = {f"BOURN_{name.upper()}": variable}
    others = PARTNER.get(name, [])
    assert value_of(load(tmp_path, *others), name) == wanted[0]
    assert value_of(load(tmp_path, *others, **variables), name) == wanted[1]
    assert value_of(load(tmp_path, *others, *flags, **variables), name) == wanted[2]


@pytest.mark.parametrize("name", ["cors", "tls_self"])
def test_a_switch_can_be_turned_either_way_by_what_goes_before(tmp_path, name):
    flag = name.replace("_", "-")
    (tmp_path / "bourn.toml").write_text(f"{name} = true\n")
    variable = {f"BOURN_{name.upper()}": "false"}
    assert value_of(load(tmp_path), name) is True
    assert value_of(load(tmp_path, **variable), name) is False
    assert value_of(load(tmp_path, f"--{flag}", **variable), name) is True
    assert value_of(load(tmp_path, f"--no-{flag}"), name) is False


def test_memory_is_a_bucket_that_ranks_with_where_it_was_said(tmp_path):
    (tmp_path / "bourn.toml").write_text("memory = true\n")
    assert load(tmp_path).bucket == "memory:"
    assert load(tmp_path, BOURN_BUCKET="s3://two").bucket == "s3://two"
    assert load(tmp_path, "--memory", BOURN_BUCKET="s3://two").bucket == "memory:"
    assert load(tmp_path, "--bucket", "x", BOURN_MEMORY="true").bucket == "x"
    assert load(tmp_path, BOURN_MEMORY="false").bucket == "memory:"


def test_without_anything_the_defaults_hold_and_the_table_shows_them(tmp_path):
    assert load(tmp_path) == ServeSettings()
    shown = {setting.name: setting.default for setting in SETTINGS}
    settings, local = ServeSettings(), EngineSettings().resolved(remote=False)
    remote = EngineSettings().resolved(remote=True)
    assert shown["host"] == settings.host
    assert shown["port"] == str(settings.port)
    assert shown["bucket"] == settings.bucket
    assert shown["log_level"] == settings.log_level
    assert shown["location"] == local.location
    assert (shown["cors"], shown["tls_self"]) == ("on", "off")
    assert (settings.cors, settings.tls_self) == (True, False)
    assert parse_size(shown["append_inflight_bytes"]) == local.append_inflight_bytes
    assert parse_size(shown["spool_bytes"]) == settings.spool_bytes
    for name, field, parse in (
        ("flush_interval", "flush_interval_ms", parse_interval_ms),
        ("commits_in_flight", "commits_in_flight", parse_interval_ms),
        ("tail_cache_bytes", "tail_cache_bytes", parse_size),
    ):
        here, there = shown[name].split(" on remote buckets")[0].split(" (")
        assert parse(here) == getattr(local, field)
        assert parse(there) == getattr(remote, field)


def test_the_file_is_the_one_that_is_named(tmp_path):
    (tmp_path / "bourn.toml").write_text("port = 1\n")
    (tmp_path / "other.toml").write_text("port = 2\n")
    (tmp_path / "third.toml").write_text("port = 3\n")
    assert load(tmp_path).port == 1
    assert load(tmp_path, BOURN_CONFIG="other.toml").port == 2
    assert load(tmp_path, "--config", "third.toml", BOURN_CONFIG="other.toml").port == 3


def test_an_empty_variable_counts_as_not_set(tmp_path):
    assert load(tmp_path, BOURN_PORT="", BOURN_BUCKET="", BOURN_CONFIG="") == ServeSettings()


def test_variables_that_kubernetes_sets_for_a_service_of_our_name_are_not_settings(tmp_path):
    links = {
        "BOURN_PORT": "tcp://10.0.0.1:8080",
        "BOURN_PORT_8080_TCP_ADDR": "10.0.0.1",
        "BOURN_SERVICE_HOST": "10.0.0.1",
        "BOURN_SERVICE_PORT_HTTP": "8080",
    }
    assert load(tmp_path, **links) == ServeSettings()


def test_a_value_that_does_not_count_is_not_looked_at(tmp_path):
    (tmp_path / "bourn.toml").write_text('port = "nonsense"\n')
    assert load(tmp_path, "--port", "5", BOURN_PORT="more nonsense").port == 5


def test_a_domain_may_be_written_as_a_pattern_and_is_kept_once(tmp_path):
    flags = [word for domain in ("*.B.example", "{basin}.b.example", "c.example")
             for word in ("--basin-domain", domain)]  # fmt: skip
    assert load(tmp_path, *flags).basin_domain == ("b.example", "c.example")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("prot = 1", "prot is no setting in bourn.toml: did you mean port?"),
        ("port = true", "port in bourn.toml: write a number, or text in quotes"),
        ("port = 1.5", "port in bourn.toml: write a number, or text in quotes"),
        ("host = 5", "host in bourn.toml: write text in quotes"),
        ('cors = "yes"', "cors in bourn.toml: write true or false"),
        ("basin_domain = [1]", "basin_domain in bourn.toml: write text in quotes"),
        ('host = ["a"]', "host in bourn.toml: write text in quotes"),
        ("[serve]\nport = 1", "serve is no setting in bourn.toml"),
        ("port = ", "bourn.toml is not TOML"),
        ("\udcff", "bourn.toml is not TOML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path, text, line):
    (tmp_path / "bourn.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Misused) as refused:
        load(tmp_path)
    assert str(refused.value).startswith(line)


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        ServeSettings().port = 1  # type: ignore[misc]  # that is the point
    assert msgspec.structs.replace(ServeSettings(), port=1).port == 1
