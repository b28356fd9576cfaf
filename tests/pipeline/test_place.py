"""What travels to executors: never a credential."""

import pickle

import pytest

from bourn.bucket.location import parse_bucket
from bourn.errors import BucketRefused
from bourn.pipeline.place import place_of

SECRETS = {
    "AWS_ACCESS_KEY_ID": "the-key-id",
    "AWS_SECRET_ACCESS_KEY": "the-secret",
    "AWS_SESSION_TOKEN": "the-token",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9000",
    "AWS_REGION": "eu-north-1",
}


def test_a_place_holds_name_and_address_and_no_secret():
    place = place_of(parse_bucket("s3://some-bucket/a/b"), SECRETS)
    assert place == ("s3", "some-bucket", "a/b", "http://127.0.0.1:9000", "eu-north-1")
    assert place.uri == "s3://some-bucket/a/b"
    travelling = pickle.dumps(place) + repr(place).encode() + repr(place.storage_options).encode()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        assert SECRETS[name].encode() not in travelling
    assert place.storage_options["AWS_ALLOW_HTTP"] == "true"


def test_a_directory_is_the_same_wherever_a_task_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = place_of(parse_bucket("./data"), {})
    assert place.place == place.uri == str(tmp_path / "data")
    assert place.storage_options == {}


def test_memory_has_no_pipeline():
    with pytest.raises(BucketRefused, match="no pipeline"):
        place_of(parse_bucket("memory:"), {})


def test_an_endpoint_with_a_password_in_it_is_refused_without_being_shown():
    with pytest.raises(BucketRefused) as raised:
        place_of(parse_bucket("s3://bucket"), {"AWS_ENDPOINT_URL": "http://me:pass@host"})
    assert "pass" not in str(raised.value).replace("password", "")


@pytest.mark.parametrize("url", ["gs://some-bucket/x", "az://container"])
def test_other_stores_are_named_too(url):
    assert place_of(parse_bucket(url), SECRETS).uri == url
