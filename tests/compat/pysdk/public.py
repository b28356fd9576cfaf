"""The public functions of the SDK, found by looking at it; printed as JSON when run."""

import inspect
import json
from types import CodeType
from typing import Any

import s2_sdk

CLOUD = {"Endpoints.default"}  # the addresses of the hosted service


def code_of(found: Any) -> CodeType | None:
    if isinstance(found, property):
        found = found.fget
    if isinstance(found, classmethod | staticmethod):
        found = found.__func__
    code: CodeType | None = getattr(inspect.unwrap(found), "__code__", None)
    return code


def functions() -> dict[str, CodeType]:
    """Every function and method that the package exports, by its name."""
    found: dict[str, CodeType] = {}
    for name in s2_sdk.__all__:
        thing = getattr(s2_sdk, name)
        members = vars(thing).items() if isinstance(thing, type) else [("", thing)]
        for member, value in members:
            code = None if member.startswith("_") else code_of(value)
            if (
                code is not None
                and "s2_sdk" in code.co_filename
                and f"{name}.{member}" not in CLOUD
            ):
                found[f"{name}.{member}".rstrip(".")] = code
    return found


if __name__ == "__main__":
    print(json.dumps(sorted(functions())))
