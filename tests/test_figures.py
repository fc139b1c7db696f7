"""The figures of README and docs are those of benchmarks/results/."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_no_figure_is_stale() -> None:
    command = [sys.executable, "benchmarks/figures.py", "--check"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout + run.stderr


def test_the_first_fence_of_the_readme_is_on_its_first_screen() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert next(number for number, line in enumerate(lines, start=1) if line.startswith("```")) <= 12
