"""`bourn`: find the command, do it, and turn how it ends into a line and an exit code."""

import os
import sys
from collections.abc import Sequence

from bourn.cli import render
from bourn.cli.client import TOKEN_VARIABLE
from bourn.cli.failures import INTERRUPTED, PIPE_CLOSED, CommandError
from bourn.cli.parser import make_parser


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    prog = "bourn"
    try:
        arguments = make_parser().parse_args(words)
        prog = arguments.prog
        if getattr(arguments, "token", None):
            os.environ[TOKEN_VARIABLE] = arguments.token  # for every client there is
        return int(arguments.run(arguments))
    except CommandError as error:
        render.note(f"{error.prog or prog}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Nobody reads the rest; the interpreter must not try to write it once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED


if __name__ == "__main__":
    sys.exit(main())
