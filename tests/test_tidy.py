"""The style that no linter knows: sizes, dead modules, leftovers, undocumented settings."""

import ast
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from bourn.settings import EngineSettings, PipelineSettings

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = sorted(path for top in ("src", "tests", "bench") for path in (ROOT / top).rglob("*.py"))
MODULE_LINES_MAX = 400
TEST_MODULE_LINES_MAX = 700
FUNCTION_LINES_MAX = 70


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def tracked_texts() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / line for line in listed.stdout.splitlines()]
    return [path for path in paths if path.is_file() and "golden" not in path.parts]


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_a_module_is_short(path):
    limit = MODULE_LINES_MAX if "src" in path.relative_to(ROOT).parts else TEST_MODULE_LINES_MAX
    assert len(path.read_text().splitlines()) <= limit


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_a_function_fits_a_screen(path):
    too_long = [
        f"{node.name} has {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not too_long


def test_every_module_is_used():
    imported: set[str] = set()
    for path in CODE:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module)
                imported.update(f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                imported.update(alias.name for alias in node.names)
    dead = [
        module
        for path in SOURCES
        if (module := module_of(path)) not in imported and path.name != "__init__.py"
    ]
    assert not dead


@pytest.mark.parametrize(
    "path", [path for path in SOURCES if path.name == "__init__.py"], ids=name_of
)
def test_a_package_is_described_and_holds_no_logic(path):
    tree = ast.parse(path.read_text())
    description = ast.get_docstring(tree)
    assert description
    assert len(description) > 40, "say what the package decides and what it must never do"
    allowed = ast.Expr | ast.Import | ast.ImportFrom | ast.Assign
    assert all(isinstance(node, allowed) for node in tree.body)


def test_nothing_is_left_for_later_in_the_text():
    marker = re.compile(r"\b(FIXM" r"E|TOD" r"O|XX" r"X|HAC" r"K)\b")
    found = [
        f"{name_of(path)}: {line.strip()}"
        for path in CODE
        for line in path.read_text().splitlines()
        if marker.search(line)
    ]
    assert not found


def test_no_text_names_hosts_of_registries_or_paths_of_a_machine():
    forbidden = re.compile(r"pypi\.or" r"g|npmjs\.or" r"g|crates\.i" r"o/|/wor" r"k/|/roo" r"t/")
    found = [
        f"{name_of(path)}: {line.strip()[:80]}"
        for path in tracked_texts()
        if path.suffix in {".py", ".md", ".toml", ".lock", ".json", ".yml", ""}
        for line in path.read_text(errors="replace").splitlines()
        if forbidden.search(line)
    ]
    assert not found


def test_every_setting_is_documented():
    text = (ROOT / "docs" / "settings.md").read_text()
    missing = [
        field.name
        for kind in (EngineSettings, PipelineSettings)
        for field in msgspec.structs.fields(kind)
        if f"`{field.name}`" not in text
    ]
    assert not missing


def test_every_make_target_has_a_line_of_help():
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    helped = set(re.findall(r"^([a-z][a-z-]*):.*## ", makefile, re.MULTILINE))
    assert helped == set(phony[1].split())


def test_ci_runs_exactly_the_test_command_of_the_readme():
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert ci[-1] == "exec make test"
    assert "make test" in (ROOT / "README.md").read_text()
