"""The shape of the repository, as facts: names, lengths, and a test for every source file."""

import ast
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted(ROOT.glob("packages/*/src/**/*.py"))
DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc", "core"}
MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MAX_COMMITTED_BYTES = 1_000_000
# Entry points and declarations: what they do is tested through the commands and the public names.
NO_TEST_OF_THEIR_OWN = {"__init__.py", "__main__.py"}

by_file = pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "packages")))


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_there_are_sources_to_look_at() -> None:
    assert len(SOURCES) > 20


@by_file
def test_a_file_is_a_noun_of_at_most_300_lines(path: Path) -> None:
    assert path.stem not in DRAWERS
    assert not DRAWERS & set(path.relative_to(ROOT).parts)
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MAX_FILE_LINES


@by_file
def test_a_function_fits_on_a_screen(path: Path) -> None:
    long = [f.name for f in functions(path) if (f.end_lineno or 0) - f.lineno + 1 > MAX_FUNCTION_LINES]
    assert not long


@by_file
def test_every_source_file_has_its_test_file(path: Path) -> None:
    if path.name in NO_TEST_OF_THEIR_OWN:
        return
    package = path.relative_to(ROOT / "packages").parts[0]
    assert list((ROOT / "tests" / package).rglob(f"test_{path.stem}.py")), f"no test_{path.stem}.py"


@by_file
def test_no_private_name_crosses_a_module(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    taken = [
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("mothertongue")
        for alias in node.names
    ]
    assert not [name for name in taken if name.startswith("_") and not name.startswith("__")]


def test_no_committed_file_is_large() -> None:
    command = ["git", "ls-files", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    committed = [ROOT / name for name in listed if name and (ROOT / name).exists()]
    assert not [path for path in committed if path.stat().st_size > MAX_COMMITTED_BYTES]
