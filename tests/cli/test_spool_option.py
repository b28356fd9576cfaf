"""Which bucket gets a spool, and what is said where it cannot be had."""

import asyncio
from pathlib import Path

import pytest

from bourn.bucket.memory import MemoryBucket
from bourn.bucket.spool import SpooledBucket
from bourn.cli.failures import Misused
from bourn.cli.serve import spooled
from bourn.limits import SPOOL_BYTES_MIN
from bourn.settings import ServeSettings
from tests.bucket.test_spool import Far


def test_a_remote_bucket_has_one(tmp_path: Path) -> None:
    far = Far()
    found = spooled(far, ServeSettings(spool_directory=str(tmp_path)))
    assert isinstance(found, SpooledBucket)
    asyncio.run(found.close())
    assert spooled(far, ServeSettings(spool_bytes=0)) is far


def test_others_need_none(tmp_path: Path) -> None:
    bucket = MemoryBucket()
    assert spooled(bucket, ServeSettings(spool_directory=str(tmp_path))) is bucket


def test_a_directory_that_was_asked_for_must_do(tmp_path: Path) -> None:
    with pytest.raises(Misused, match=r"spool_directory: .*nowhere.*--spool-bytes 0"):
        spooled(Far(), ServeSettings(spool_directory=str(tmp_path / "nowhere")))


def test_one_that_nobody_asked_for_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "nowhere"))
    far = Far()
    assert spooled(far, ServeSettings()) is far
    assert "no spool: " in capsys.readouterr().err


def test_one_that_is_too_small_is_refused() -> None:
    with pytest.raises(ValueError, match="spool_bytes must be at least"):
        ServeSettings(spool_bytes=SPOOL_BYTES_MIN - 1)
