"""Where a command's request goes."""

import pytest

from bourn.cli.address import account_endpoint, basin_endpoint, parse_basin, parse_stream
from bourn.cli.failures import Misused


@pytest.mark.parametrize(
    ("text", "basin", "stream"),
    [
        ("s2://my-basin/events", "my-basin", "events"),
        ("my-basin/events", "my-basin", "events"),
        ("s2://my-basin/a/b c/", "my-basin", "a/b c/"),
        ("s2://my-basin//", "my-basin", "/"),
    ],
)
def test_a_stream_is_a_basin_and_whatever_follows(text, basin, stream):
    assert parse_stream(text) == (basin, stream)


@pytest.mark.parametrize("text", ["", "s2://", "my-basin", "s2://my-basin/", "S2://my-basin/a"])
def test_what_names_no_stream_is_refused(text):
    with pytest.raises(Misused, match="names no stream"):
        parse_stream(text)


def test_a_basin_may_be_written_as_an_address():
    assert parse_basin("my-basin") == parse_basin("s2://my-basin/") == "my-basin"
    with pytest.raises(Misused, match="names no basin"):
        parse_basin("s2://my-basin/events")


def test_a_flag_goes_before_the_variables_and_they_before_the_server_of_this_machine():
    environ = {"S2_ACCOUNT_ENDPOINT": "http://a:1", "S2_BASIN_ENDPOINT": "https://b"}
    assert account_endpoint(None, environ).url == "http://a:1"
    assert basin_endpoint(None, environ, "my-basin").url == "https://b:443"
    assert account_endpoint("http://c", environ).url == "http://c:80"
    assert basin_endpoint("http://c", environ, "my-basin").url == "http://c:80"
    assert account_endpoint(None, {}).url == "http://127.0.0.1:8080"
    assert basin_endpoint(None, {}, "my-basin").url == "http://127.0.0.1:8080"


def test_a_host_that_holds_the_basin_names_it():
    environ = {"S2_BASIN_ENDPOINT": "https://{basin}.b.example"}
    endpoint = basin_endpoint(None, environ, "my-basin")
    assert (endpoint.host, endpoint.names_basin) == ("my-basin.b.example", True)
    assert not basin_endpoint("https://b.example", {}, "my-basin").names_basin


def test_the_version_is_added_unless_the_url_has_a_path():
    assert account_endpoint("http://a", {}).path == account_endpoint("http://a/", {}).path == "/v1"
    assert account_endpoint("http://a/v1/", {}).path == "/v1"
    assert account_endpoint("http://a/s2/v1", {}).path == "/s2/v1"
    assert account_endpoint("http://[::1]:5", {}).url == "http://[::1]:5"


@pytest.mark.parametrize(
    "url", ["a:80", "ftp://a", "http://", "http://a:b", "http://u:p@a", "http://a?q", "http://[a"]
)
def test_what_is_no_endpoint_is_refused_with_an_example(url):
    with pytest.raises(Misused, match=r"--endpoint: .* is no endpoint: write one such as http://"):
        account_endpoint(url, {})
