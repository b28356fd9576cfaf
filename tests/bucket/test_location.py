import asyncio
from pathlib import Path

import pytest

from bourn.bucket.local import LocalBucket
from bourn.bucket.location import Location, parse_bucket
from bourn.bucket.memory import MemoryBucket
from bourn.bucket.remote import RemoteBucket
from bourn.bucket.stores import RemoteOptions
from bourn.errors import BucketRefused
from tests.bucket.conftest import S3_BUCKET
from tests.s3server import S3Server


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("memory:", Location("memory")),
        ("memory://", Location("memory")),
        ("MEMORY:", Location("memory")),
        ("/var/lib/bourn", Location("file", "/var/lib/bourn")),
        ("data", Location("file", "data")),
        ("./with space", Location("file", "./with space")),
        ("file:///var/lib/bourn", Location("file", "/var/lib/bourn")),
        ("file:///with%20space", Location("file", "/with space")),
        ("s3://my-bucket", Location("s3", "my-bucket")),
        ("s3://my-bucket/", Location("s3", "my-bucket")),
        ("s3://my.bucket/a/b_c", Location("s3", "my.bucket", "a/b_c")),
        ("S3://my-bucket/a/", Location("s3", "my-bucket", "a")),
        ("gs://bucket/p", Location("gs", "bucket", "p")),
        ("az://container/p", Location("az", "container", "p")),
    ],
)
def test_a_location_is_read_as_people_write_it(text: str, expected: Location) -> None:
    assert parse_bucket(text) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "write memory:, a path"),
        ("a\0b", "write memory:, a path"),
        ("memory:data", "nothing behind the colon"),
        ("file://host/path", "write file:///path"),
        ("file:path", "write file:///path"),
        ("file:///", "write file:///path"),
        ("http://example.com", "unknown scheme http"),
        ("s3a://bucket", "unknown scheme s3a"),
        ("s3:bucket", "write s3://bucket/prefix"),
        ("s3://", "write s3://bucket/prefix"),
        ("s3:///prefix", "write s3://bucket/prefix"),
        ("s3://a", "write s3://bucket/prefix"),
        ("s3://bucket?x=y", "write s3://bucket/prefix"),
        ("s3://bucket/pre fix", "a prefix is made of"),
        ("s3://bucket/../other", "a prefix is made of"),
        ("s3://bucket//twice", "a prefix is made of"),
        (f"gs://bucket/{'x' * 200}/{'x' * 200}", "a prefix is made of"),
        ("s3://AKIAKEY:watchword@bucket/p", "credentials do not belong"),
    ],
)
def test_a_wrong_location_is_answered_by_one_line_on_how_to_write_it(text: str, words: str) -> None:
    with pytest.raises(BucketRefused, match=words) as caught:
        parse_bucket(text)
    assert "\n" not in caught.value.message
    assert "watchword" not in caught.value.message


def test_a_parsed_location_opens_its_kind_of_bucket(tmp_path: Path) -> None:
    async def scenario() -> None:
        kinds = {
            "memory:": MemoryBucket,
            str(tmp_path / "a"): LocalBucket,
            f"file://{tmp_path}/b": LocalBucket,
            "s3://bucket/p": RemoteBucket,
        }
        for text, kind in kinds.items():
            bucket = parse_bucket(text).open(environ={"AWS_ACCESS_KEY_ID": "key"})
            assert type(bucket) is kind
            assert bucket.is_remote == (kind is RemoteBucket)
            if kind is LocalBucket:
                assert bucket.name.startswith(f"file://{tmp_path}/")
            else:
                assert bucket.name == text
            await bucket.close()
        assert (tmp_path / "a").is_dir()

    asyncio.run(scenario())


def test_the_environment_fills_in_what_the_options_leave_empty() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://general",
        "AWS_DEFAULT_REGION": "default",
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_SESSION_TOKEN": "token",
    }
    found = RemoteOptions().with_environment(environ)
    assert (found.endpoint, found.region) == ("http://general", "default")
    assert (found.access_key_id, found.secret_access_key) == ("key", "secret")
    assert found.session_token == "token"
    more = environ | {"AWS_ENDPOINT_URL_S3": "http://special", "AWS_REGION": "region"}
    found = RemoteOptions().with_environment(more)
    assert (found.endpoint, found.region) == ("http://special", "region")
    given = RemoteOptions(endpoint="http://own", region="own", access_key_id="own", retries=7)
    assert given.with_environment(more) == given, "explicit keys take no token of another's"


def test_a_bucket_is_reached_through_the_usual_variables(moto: S3Server) -> None:
    environ = {
        "AWS_ENDPOINT_URL_S3": moto.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": moto.access_key_id,
        "AWS_SECRET_ACCESS_KEY": moto.secret_access_key,
    }
    bucket = parse_bucket(f"s3://{S3_BUCKET}/from/environment").open(environ=environ)
    asyncio.run(bucket.put_if_absent("key", b"1"))
    assert asyncio.run(bucket.get("key")) == b"1"


def test_settings_that_the_store_rejects_are_refused_without_quoting_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BucketRefused, match="settings are not usable") as caught:
        parse_bucket("az://container").open()
    assert caught.value.__cause__ is None
