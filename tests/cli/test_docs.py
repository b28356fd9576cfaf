"""The documents name every command, option and setting, and nothing that does not exist."""

import re
from pathlib import Path

import pytest

from bourn.cli.config import CONFIG_VARIABLE
from bourn.cli.failures import DONE, FAILED, INTERRUPTED, MISUSED, REFUSED
from bourn.cli.options import SETTINGS
from bourn.cli.parser import leaves, make_parser
from bourn.settings import EngineSettings

DOCS = Path(__file__).parent.parent.parent / "docs"
COMMANDS = {parser.prog: parser for parser in leaves(make_parser())}
EVERYWHERE = {"-h", "--help", "--endpoint", "--token", "--json"}  # said once, at the top


def text_of(name):
    return (DOCS / name).read_text()


def sections():
    """The text below each heading of a command, by each command that the heading names."""
    found = {}
    for part in re.split(r"^### ", text_of("cli.md"), flags=re.MULTILINE)[1:]:
        heading, _, body = part.partition("\n")
        body = re.split(r"^## ", body, flags=re.MULTILINE)[0]
        for usage in re.findall(r"`(bourn [^`]+)`", heading):
            words = [word for word in usage.split() if word.islower() and "://" not in word]
            found[" ".join(words)] = (usage, body)
    return found


def options_of(parser):
    return set(parser._option_string_actions) - EVERYWHERE


def settings_table():
    rows = re.findall(r"^\| (`--.*) \|$", text_of("settings.md"), re.MULTILINE)
    return [row.split(" | ") for row in rows]


def test_every_command_has_its_section_and_no_other_has_one():
    assert sections().keys() == COMMANDS.keys()


@pytest.mark.parametrize("prog", COMMANDS)
def test_every_option_of_a_command_is_in_its_section(prog):
    if prog == "bourn serve":
        body = text_of("settings.md")
    else:
        _, body = sections()[prog]
    missing = [
        option
        for option in options_of(COMMANDS[prog])
        if not re.search(rf"`{re.escape(option)}[` ]", body)
    ]
    assert not missing


@pytest.mark.parametrize("prog", COMMANDS)
def test_every_argument_of_a_command_is_in_its_usage(prog):
    usage, _ = sections()[prog]
    shown = usage.removeprefix(prog).split()
    wanted = [
        action.metavar or action.dest.upper()
        for action in COMMANDS[prog]._actions
        if not action.option_strings
    ]
    assert shown == wanted


@pytest.mark.parametrize("name", ["cli.md", "settings.md"])
def test_no_option_is_written_about_that_does_not_exist(name):
    known = {"--version", *EVERYWHERE}
    for parser in COMMANDS.values():
        known |= options_of(parser)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", text_of(name))) <= known


def test_every_setting_is_a_row_with_its_flag_variable_key_and_default():
    rows = {row[2].strip("`"): row for row in settings_table()}
    assert list(rows) == [setting.name for setting in SETTINGS]
    for setting in SETTINGS:
        flag, variable, _, default, _ = rows[setting.name]
        value = f" {setting.metavar}" if setting.metavar else ""
        no = f", `--no-{setting.flag[2:]}`" if setting.can_be_off else ""
        assert flag == f"`{setting.flag}{value}`{no}"
        assert variable == f"`{setting.variable}`"
        assert default == setting.default


def test_no_variable_is_written_about_that_does_not_exist():
    written = set(re.findall(r"BOURN_[A-Z_]+[A-Z]", text_of("settings.md") + text_of("cli.md")))
    kubernetes = {"BOURN_SERVICE_HOST"}
    assert written <= {setting.variable for setting in SETTINGS} | {CONFIG_VARIABLE} | kubernetes


def test_every_setting_of_the_engine_that_has_a_flag_exists():
    fields = [setting.engine_field for setting in SETTINGS if setting.engine_field]
    assert set(fields) <= set(EngineSettings.__struct_fields__)


def test_every_exit_code_is_in_the_table():
    table = re.findall(r"^\| ([0-9]+) \|", text_of("cli.md"), re.MULTILINE)
    assert list(map(int, table)) == [DONE, REFUSED, MISUSED, FAILED, INTERRUPTED]
