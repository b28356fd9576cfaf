"""Say which interpreter `make` sets .venv up with: python3, unless the system's own is quicker.

CPython that was built from source without `--enable-optimizations`, as version managers do unless
they are told, runs Bourn's hot ways a fifth to a third slower than the packaged one does. Runs on
any Python 3; whoever wants a certain one says `make PYTHON=...`.
"""

import os
import subprocess
import sys
import sysconfig

SYSTEM = "/usr/bin/python3"
USABLE = "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"


def is_optimised() -> bool:
    """Whether this one was built for speed: packaged, or with the flag."""
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    return "--enable-optimizations" in arguments or sys.base_prefix == "/usr"


def is_usable(python: str) -> bool:
    """Whether another one can run Bourn."""
    if not os.access(python, os.X_OK):
        return False
    return subprocess.call([python, "-c", USABLE], stderr=subprocess.DEVNULL) == 0


def main() -> None:
    """Print its path."""
    chosen = sys.executable
    if sys.platform == "linux" and not is_optimised() and is_usable(SYSTEM):
        chosen = SYSTEM
        print(
            f"{sys.executable} was built without --enable-optimizations, which costs a fifth to a "
            f"third of the speed: taking {SYSTEM}. PYTHON=... chooses another.",
            file=sys.stderr,
        )
    print(chosen)


if __name__ == "__main__":
    main()
