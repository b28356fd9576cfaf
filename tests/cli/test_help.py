"""Help, versions, completions, and that the command is installed under its name."""

import argparse
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from bourn.cli.main import main
from bourn.cli.parser import leaves, make_parser, subcommands
from tests.cli.process import bourn

ROOT = Path(__file__).parent.parent.parent


def programs(parser):
    yield parser
    for child in subcommands(parser).values():
        yield from programs(child)


PROGRAMS = {parser.prog: parser for parser in programs(make_parser())}


@pytest.mark.parametrize("prog", PROGRAMS)
def test_every_command_has_help(capsys, prog):
    with pytest.raises(SystemExit) as ended:
        main([*prog.split()[1:], "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {prog}")
    for action in PROGRAMS[prog]._actions:
        if not isinstance(action, argparse._SubParsersAction):
            assert action.help, f"{action.dest} must say what it does"
        for option in action.option_strings:
            assert option in text


def test_the_commands_are_these():
    assert sorted(parser.prog for parser in leaves(make_parser())) == [
        "bourn append",
        "bourn basin config",
        "bourn basin create",
        "bourn basin delete",
        "bourn basin list",
        "bourn bench",
        "bourn completion",
        "bourn fence",
        "bourn metrics account",
        "bourn metrics basin",
        "bourn metrics stream",
        "bourn pipeline audit",
        "bourn pipeline export",
        "bourn pipeline import",
        "bourn pipeline replay",
        "bourn pipeline run",
        "bourn pipeline status",
        "bourn read",
        "bourn serve",
        "bourn stream config",
        "bourn stream create",
        "bourn stream delete",
        "bourn stream list",
        "bourn tail",
        "bourn token issue",
        "bourn token list",
        "bourn token revoke",
        "bourn trim",
    ]


def test_the_command_is_installed_by_the_name_of_the_project():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, function = project["scripts"]["bourn"].partition(":")
    assert getattr(importlib.import_module(module), function) is main
    assert bourn("--version").lines == [f"bourn {project['version']}"]


def test_make_serve_runs_it():
    recipe = re.search(r"^serve:.*\n\t(.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert recipe[1] == "@exec $(BIN)/bourn serve $(ARGS)"


def test_a_client_command_does_not_wait_for_the_engine_to_load():
    code = """
import sys
from bourn.cli.main import main
assert main(["basin", "list", "--endpoint", "http://127.0.0.1:1"]) == 3
heavy = {"numba", "numpy", "pyarrow", "obstore", "httpunk", "uvloop"} & sys.modules.keys()
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    path = tmp_path_factory.mktemp("completion") / "bourn.bash"
    path.write_bytes(bourn("completion", "bash").out)
    return path


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["ser"], {"serve"}),
        (["basin", ""], {"list", "create", "delete", "config", "-h", "--help"}),
        (["stream", "co"], {"config"}),
        (["stream", "--json", "co"], {"config"}),
        (["append", "s2://b/s", "--format", ""], {"text", "json", "json-base64"}),
        (["serve", "--tls"], {"--tls-cert", "--tls-key", "--tls-self"}),
        (["serve", "--memory", "--no-"], {"--no-auth", "--no-cors", "--no-tls-self"}),
        (["bench", "my-basin", "--compression", ""], {"none", "gzip", "zstd"}),
        (["token", "re"], {"revoke"}),
        (["metrics", "basin", "b", "--interval", ""], {"minute", "hour", "day"}),
        (["metrics", "stream", "s2://b/s", "--set", ""], {"storage"}),
        (["completion", ""], {"bash", "zsh", "fish", "-h", "--help"}),
    ],
)
def test_bash_completes_commands_options_and_values(bash_script, words, wanted):
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    listed = " ".join(f"'{word}'" for word in ["bourn", *words])
    code = (
        f"source {bash_script}; COMP_WORDS=({listed}); COMP_CWORD={len(words)}; _bourn; "
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    ended = subprocess.run([bash, "-c", code], capture_output=True, text=True, check=True)
    assert set(ended.stdout.split()) == wanted
    assert ended.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_get_every_command_and_option_too(capsys, shell):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for parser in leaves(make_parser()):
        assert f"{parser.prog}" in script
        for option in parser._option_string_actions:
            word = option if shell == "zsh" else option.lstrip("-")
            assert word in script
    installed = shutil.which(shell)
    if installed is not None:
        check = ["-n"] if shell == "zsh" else ["--no-execute"]
        subprocess.run([installed, *check], input=script.encode(), check=True, capture_output=True)
