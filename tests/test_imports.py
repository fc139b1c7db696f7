"""Who may load what, seen from a fresh interpreter, and who may name what, seen in the source."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"torch", "jax", "transformers", "onnx", "onnxruntime", "optimum", "tokenizers", "numpy", "jinja2"}


def loaded_by(statement: str) -> set[str]:
    """Return the heavy packages in sys.modules after `statement` in a fresh interpreter."""
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return set(json.loads(output)) & HEAVY


@pytest.mark.parametrize(
    "statement",
    [
        "import mothertongue",
        "import mothertongue.command",
        "import mothertongue.cli",
        "import mothertongue_arbiter.cli",
        "import mothertongue_trainer.cli",
        "import mothertongue_export.cli",
        "import mothertongue_trainer.recipe",
        "import mothertongue_trainer.stages",
    ],
)
def test_commands_and_settings_load_nothing_heavy(statement: str) -> None:
    assert loaded_by(statement) == set()


def test_the_arbiter_without_its_adapter_loads_no_framework() -> None:
    assert not loaded_by("import mothertongue_arbiter") & {"torch", "jax", "transformers"}


def test_the_runtime_never_loads_torch() -> None:
    modules = sorted(path.stem for path in (ROOT / "packages/runtime/src/mothertongue").glob("*.py"))
    statement = "; ".join(f"import mothertongue.{name}" for name in modules if not name.startswith("__"))
    assert not loaded_by(statement) & {"torch", "jax", "transformers", "onnx", "optimum"}


def imported_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.split(".")[0])
    return names


def test_the_arbiter_names_torch_only_in_its_adapter() -> None:
    source = ROOT / "packages/arbiter/src/mothertongue_arbiter"
    naming = {
        str(path.relative_to(source)) for path in source.rglob("*.py") if "torch" in imported_names(path)
    }
    assert all(Path(name).parts[0].startswith("torch") for name in naming), naming


def test_the_arbiter_names_jax_only_in_its_adapter() -> None:
    source = ROOT / "packages/arbiter/src/mothertongue_arbiter"
    naming = {path.relative_to(source) for path in source.rglob("*.py") if "jax" in imported_names(path)}
    assert naming
    assert all(path.parts[0] == "jax" for path in naming), naming


def test_arrows_between_the_packages_point_one_way() -> None:
    allowed = {
        "arbiter": {"mothertongue_arbiter"},
        "runtime": {"mothertongue"},
        "trainer": {"mothertongue_trainer", "mothertongue_arbiter", "mothertongue"},
        "export": {"mothertongue_export", "mothertongue_trainer", "mothertongue"},
    }
    for package, may in allowed.items():
        for path in (ROOT / "packages" / package / "src").rglob("*.py"):
            ours = {name for name in imported_names(path) if name.startswith("mothertongue")}
            assert ours <= may, path


def test_each_folder_of_the_torch_adapter_builds_on_those_above_it_only() -> None:
    source = ROOT / "packages/arbiter/src/mothertongue_arbiter/torch"
    text = ast.get_docstring(ast.parse((source / "__init__.py").read_text(encoding="utf-8"))) or ""
    order = [words[0] for line in text.splitlines() if line.startswith("    ") and (words := line.split())]
    assert sorted(order) == sorted(path.parent.name for path in source.glob("*/__init__.py"))
    for path in source.glob("*/*.py"):
        named = re.findall(r"mothertongue_arbiter\.torch\.(\w+)", path.read_text(encoding="utf-8"))
        assert set(named) <= set(order[: order.index(path.parent.name) + 1]), path
