"""`make` sets up .venv with an interpreter that is not slow, where there is one."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PATH = Path(__file__).resolve().parent.parent / "requirements" / "interpreter.py"


@pytest.fixture
def interpreter() -> ModuleType:
    spec = importlib.util.spec_from_file_location("interpreter", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("optimised", "usable", "is_system"),
    [(True, True, False), (False, True, True), (False, False, False)],
)
def test_the_systems_own_is_taken_where_it_is_quicker_and_can_be_used(
    interpreter: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    optimised: bool,
    usable: bool,
    is_system: bool,
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(interpreter, "is_optimised", lambda: optimised)
    monkeypatch.setattr(interpreter, "is_usable", lambda _: usable)
    interpreter.main()
    printed = capsys.readouterr()
    assert printed.out.strip() == (interpreter.SYSTEM if is_system else sys.executable)
    assert ("PYTHON=" in printed.err) is is_system


def test_what_is_no_interpreter_or_too_old_cannot_be_used(
    interpreter: ModuleType, tmp_path: Path
) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    assert not interpreter.is_usable(str(old))  # nobody may run it
    old.chmod(0o755)
    assert not interpreter.is_usable(str(old))
    assert not interpreter.is_usable(str(tmp_path / "none"))


def test_one_line_comes_out_and_it_runs() -> None:
    chosen = subprocess.run([sys.executable, PATH], capture_output=True, text=True, check=True)
    (path,) = chosen.stdout.splitlines()
    subprocess.run([path, "-c", "import sys; assert sys.version_info >= (3, 11)"], check=True)
