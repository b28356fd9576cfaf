"""`bourn pipeline audit` as a person sees it, and as a script does."""

import json

import pytest

from bourn.bucket.local import LocalBucket
from bourn.cli.failures import DONE, MISUSED, REFUSED
from bourn.cli.main import main
from tests.pipeline.audit_harness import BASIN, audit_on, forge_segment, live, rows_of, tiered
from tests.pipeline.harness import a_log, quiet
from tests.support import run


@pytest.fixture
def root(tmp_path):
    async def prepare():
        bucket = LocalBucket(tmp_path / "b")
        await a_log(bucket)
        await tiered(bucket)
        await bucket.close()

    run(prepare())
    return tmp_path / "b"


@pytest.fixture(autouse=True)
def without_spark(monkeypatch):
    async def here(place, settings):
        assert settings.is_local
        bucket = place.open()
        job = audit_on(bucket)
        try:
            return await job.audit(quiet()), job.names
        finally:
            await bucket.close()

    monkeypatch.setattr("bourn.cli.audit._audit", here)
    monkeypatch.setattr("bourn.cli.audit.os.nice", lambda _: 0)


async def repeat_rows(root) -> None:
    bucket = LocalBucket(root)
    add = (await live(bucket))[0]
    rows = await rows_of(bucket, add)
    await forge_segment(bucket, rows.slice(1, 2))
    await forge_segment(bucket, rows.slice(4, 2))
    await bucket.close()


def test_a_clean_bucket_ends_with_0_and_says_what_was_looked_at(capsys, root):
    assert main(["pipeline", "audit", "--bucket", str(root)]) == DONE
    told = capsys.readouterr().out
    assert "history records  72" in told
    assert told.endswith("clean: nothing is missing, altered, repeated or out of order\n")


def test_violations_end_with_1_and_are_shown_by_name_up_to_a_number(capsys, root):
    run(repeat_rows(root))
    words = ["pipeline", "audit", "--bucket", str(root)]
    assert main([*words, "--show", "1"]) == REFUSED
    told = capsys.readouterr().out
    assert "repeated: history/" in told
    assert "tiered-basin/one (2) at 1: 2 records are in history/" in told
    assert "more; the report has" in told
    assert main([*words, "--json"]) == REFUSED
    shape = json.loads(capsys.readouterr().out)
    assert shape["clean"] is False
    assert shape["violations"][0]["stream"] == "one"
    assert shape["violations"][0]["basin"] != BASIN
    assert shape["violations_total"] == len(shape["violations"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--bucket", "memory:"], "no pipeline"),
        (["--master", "", "--bucket", "x"], "master is empty"),
        (["--show", "many", "--bucket", "x"], "many"),
    ],
)
def test_what_cannot_be_meant_is_said_in_one_line(capsys, tmp_path, monkeypatch, words, says):
    monkeypatch.chdir(tmp_path)
    assert main(["pipeline", "audit", *words]) == MISUSED
    assert says in capsys.readouterr().err
