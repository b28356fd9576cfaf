"""How a command ends when it cannot do its work: one line, and a code that scripts can act on.

    0    done
    1    refused: the request cannot succeed as things are; nothing was done
    2    told wrong: mend the command, the variable or the file that the line names
    3    failed: the server cannot be reached or broke off; try again
    130  interrupted

The server uses 1 where its bucket does not hold or do what it must, and 2 for its settings.
"""

from typing import Final

DONE: Final = 0
REFUSED: Final = 1
MISUSED: Final = 2
FAILED: Final = 3
INTERRUPTED: Final = 130
PIPE_CLOSED: Final = 141  # what the shell shows for a reader that went away, as in `| head`


class CommandError(Exception):
    """The command ends here; its text is the line that the person sees."""

    exit_code = REFUSED
    prog = ""  # the command, where it was not even found out


class Refused(CommandError):
    """The server, or what it stands on, said no."""


class Misused(CommandError):
    """The command or a setting must be mended first."""

    exit_code = MISUSED


class Failed(CommandError):
    """It may work another time."""

    exit_code = FAILED
