"""The environment of the other checkers, with checkers made for the occasion."""

import subprocess
import sys

import pytest
from faults.tools import environment
from faults.tools.environment import prepared, verdicts

SILENT = "def audit(model, loss, optimizer): return type('Report', (), {'errors': [], 'warnings': []})()"
ENDS = "import os\ndef audit(*_, **__): os._exit(7)\nPhase = [0]"
HANGS = "import time\ndef check_gradients(model): time.sleep(600)"
RAISES = "def check_model(*_, **__): raise ValueError('no such thing')"


@pytest.fixture
def python_with(tmp_path):
    """Return a Python that also finds these modules."""

    def made(**modules):
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
        python = tmp_path / "python"
        python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{tmp_path}" exec "{sys.executable}" "$@"\n')
        python.chmod(0o755)
        return python

    return made


def test_a_tool_that_hangs_exits_or_raises_costs_only_its_answer(python_with):
    python = python_with(guardtower=SILENT, torch_audit=ENDS, torchdiag=HANGS, torchtest2=RAISES)
    ((case, answers),) = verdicts(python, ["plain"], limit_seconds=10)
    assert case == "plain"
    assert answers == {
        "guardtower": "",
        "torch-audit": "crashed: the process ended without an answer, exit code 7",
        "torchdiag": "crashed: no answer within 10 s",
        "torchtest2": "crashed: ValueError: no such thing",
    }


def test_a_probe_that_ends_early_is_said_after_what_it_answered(tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"case": "plain", "guardtower": ""}\'\necho no room >&2\nexit 3\n')
    python.chmod(0o755)
    answers = verdicts(python, ["plain", "dropout"])
    assert next(answers) == ("plain", {"guardtower": ""})
    with pytest.raises(RuntimeError, match="exit code 3: no room"):
        next(answers)


@pytest.fixture
def commands(monkeypatch):
    """Record what would be run; `guardtower` does not install."""
    asked = []

    def run(command, check):
        asked.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, returncode=int("guardtower" in asked[-1][-1]))

    monkeypatch.setattr(environment.subprocess, "run", run)
    return asked


def test_the_environment_is_made_once_and_goes_without_what_does_not_install(commands, tmp_path, capsys):
    tmp_path.joinpath("bin").mkdir()
    python = prepared(tmp_path)
    assert python == tmp_path / "bin" / "python"
    assert commands[0][1:3] == ["-m", "venv"]
    assert commands[1][-1].startswith("torch==")
    assert "guardtower==0.1.0: not installable here, left out" in capsys.readouterr().err
    made = len(commands)
    assert prepared(tmp_path) == python
    assert len(commands) == made


def test_other_requirements_are_another_environment(commands, tmp_path):
    prepared(tmp_path)
    (tmp_path / "requirements.txt").write_text("of last year")
    made = len(commands)
    prepared(tmp_path)
    assert len(commands) == 2 * made
