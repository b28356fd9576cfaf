"""Completion scripts, made from the parser itself, so that they never lag behind it."""

import argparse
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bourn.cli import render
from bourn.cli.failures import DONE


class Words(NamedTuple):
    """What may follow a command: its path, and the words with what they mean."""

    path: str  # `bourn basin list`
    choices: dict[str, str]
    files_after: list[str]  # options whose value is a file
    values_after: dict[str, list[str]]  # options whose value is one of these


def run(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> int:
    """Print the script for a shell."""
    render.line(SHELLS[arguments.shell](list(_words(parser))))
    return DONE


def _words(parser: argparse.ArgumentParser) -> Iterator[Words]:
    choices: dict[str, str] = {}
    files: list[str] = []
    values: dict[str, list[str]] = {}
    for action in parser._actions:  # noqa: SLF001  argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001  as above
            for inner in action._choices_actions:  # noqa: SLF001  as above
                choices[inner.dest] = inner.help or ""
            for child in action.choices.values():
                yield from _words(child)
            continue
        for flag in action.option_strings:
            choices[flag] = action.help or ""
            if action.metavar == "FILE":
                files.append(flag)
            elif action.choices is not None:
                values[flag] = list(map(str, action.choices))
        if not action.option_strings and action.choices is not None:
            choices |= dict.fromkeys(map(str, action.choices), action.help or "")
    yield Words(parser.prog, choices, files, values)


_BASH: Final = """\
# bash completion for bourn:  source <(bourn completion bash)
_bourn() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} path=bourn next
  for next in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    case "$path $next" in
{paths}
    esac
  done
  case "$path $before" in
{values}
  esac
  case "$path" in
{choices}
  esac
}}
complete -F _bourn bourn"""


def _bash(words: list[Words]) -> str:
    values: list[str] = []
    for place in words:
        values += [
            _case(f"{place.path} {flag}", 'COMPREPLY=($(compgen -f -- "$word"))')
            for flag in place.files_after
        ]
        values += [
            _case(f"{place.path} {flag}", _compgen(choices))
            for flag, choices in place.values_after.items()
        ]
    return _BASH.format(
        paths="\n".join(
            f'      "{place.path}") path="{place.path}" ;;' for place in words if " " in place.path
        ),
        values="\n".join(values),
        choices="\n".join(
            f'    "{place.path}") {_compgen(list(place.choices))} ;;' for place in words
        ),
    )


def _case(pattern: str, action: str) -> str:
    return f'    "{pattern}") {action}; return ;;'


def _compgen(choices: list[str]) -> str:
    return f'COMPREPLY=($(compgen -W "{" ".join(choices)}" -- "$word"))'


_ZSH: Final = """\
#compdef bourn
# zsh completion for bourn:  source <(bourn completion zsh)
_bourn() {{
  local path_=bourn next
  local -a choices
  for next in "${{(@)words[2,CURRENT-1]}}"; do
    case "$path_ $next" in
{paths}
    esac
  done
  case "$path_ ${{words[CURRENT-1]}}" in
{values}
  esac
  case "$path_" in
{choices}
  esac
  _describe 'bourn' choices
}}
compdef _bourn bourn"""


def _zsh(words: list[Words]) -> str:
    values: list[str] = []
    choices: list[str] = []
    for place in words:
        values += [_case(f"{place.path} {flag}", "_files") for flag in place.files_after]
        values += [
            _case(f"{place.path} {flag}", f"compadd -- {' '.join(allowed)}")
            for flag, allowed in place.values_after.items()
        ]
        described = " ".join(
            _quoted(f"{word.replace(':', chr(92) + ':')}:{what}")
            for word, what in place.choices.items()
        )
        choices.append(f'    "{place.path}") choices=({described}) ;;')
    return _ZSH.format(
        paths="\n".join(
            f'      "{place.path}") path_="{place.path}" ;;' for place in words if " " in place.path
        ),
        values="\n".join(values),
        choices="\n".join(choices),
    )


_FISH: Final = """\
# fish completion for bourn:  bourn completion fish | source
function __bourn_at
  set -l path bourn
  for next in (commandline -opc)[2..]
    switch "$path $next"
{paths}
    end
  end
  test "$path" = "$argv"
end
complete -c bourn -f
{choices}"""


def _fish(words: list[Words]) -> str:
    lines: list[str] = []
    for place in words:
        for word, what in place.choices.items():
            how = f"-a {word}"
            if word.startswith("--"):
                how = f"-l {word[2:]}"
            elif word.startswith("-"):
                how = f"-s {word[1:]}"
            if word in place.files_after:
                how += " -r -F"
            elif word in place.values_after:
                how += f" -x -a {_quoted(' '.join(place.values_after[word]))}"
            lines.append(f"complete -c bourn -n '__bourn_at {place.path}' {how} -d {_quoted(what)}")
    return _FISH.format(
        paths="\n".join(
            f"      case '{place.path}'; set path '{place.path}'"
            for place in words
            if " " in place.path
        ),
        choices="\n".join(lines),
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("'", "") + "'"


SHELLS: Final[dict[str, Callable[[list[Words]], str]]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
