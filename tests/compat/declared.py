"""The public functions of each SDK."""

import json
import re
import subprocess

from tests.compat.install import PYTHON, ROOT, TYPESCRIPT_SDK

BLOCK = re.compile(r"^export declare (?:class|namespace) .*?^}", re.MULTILINE | re.DOTALL)
SESSION = re.compile(
    r"^export interface (?:AppendSession|ReadSession)\b.*?^}", re.MULTILINE | re.DOTALL
)
METHOD = re.compile(r"^    (?:static |function )?(?!constructor)(\w+)(?:<[^(]*>)?\(", re.MULTILINE)


def methods(sdk: str) -> set[str]:
    return python_methods() if sdk == "python" else typescript_methods()


def python_methods() -> set[str]:
    shown = subprocess.run(
        [PYTHON, "-m", "tests.compat.pysdk.public"], cwd=ROOT, stdout=subprocess.PIPE, check=True
    )
    return set(json.loads(shown.stdout))


def typescript_methods() -> set[str]:
    """What the declarations of the package show of its classes, as `file:function`."""
    home = TYPESCRIPT_SDK / "dist" / "esm"
    found: set[str] = set()
    for path in sorted(home.glob("*.d.ts")):
        exported = f'"./{path.name.removesuffix(".d.ts")}.js"' in (home / "index.d.ts").read_text()
        for block in BLOCK.findall(path.read_text()) if exported else ():
            script = path.name.replace(".d.ts", ".js")
            found.update(f"{script}:{name}" for name in METHOD.findall(block))
    sessions = (home / "lib" / "stream" / "types.d.ts").read_text()
    for block in SESSION.findall(sessions):
        found.update(f"lib/retry.js:{name}" for name in METHOD.findall(block))
    return found
