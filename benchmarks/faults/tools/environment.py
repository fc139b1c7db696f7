"""Make the environment of the other checkers once, and ask it about many cases."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mothertongue" / "fault-tools"
REQUIREMENTS = Path(__file__).with_name("requirements.txt")
TOOLS = ("guardtower", "torch-audit", "torchdiag", "torchtest2")


def prepared(cache: Path = CACHE) -> Path:
    """Return the Python of the environment, made if it is not there. A tool that does not install stays out.

    Raises:
        CalledProcessError: not even torch installs.
    """
    python = cache / "bin" / "python"
    stamp = cache / "requirements.txt"
    if stamp.exists() and stamp.read_text() == REQUIREMENTS.read_text():
        return python
    subprocess.run([sys.executable, "-m", "venv", "--clear", cache], check=True)
    install = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*install, f"torch=={version('torch').partition('+')[0]}"], check=True)
    wanted = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    for one in wanted:
        if subprocess.run([*install, one], check=False).returncode:
            print(f"{one}: not installable here, left out", file=sys.stderr)
    stamp.write_text(REQUIREMENTS.read_text())
    return python


def verdicts(
    python: Path, names: list[str], *, jobs: int = 2, limit_seconds: float = 120
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each case with the answer of each tool: "error", "warning", "" for silence, or why it crashed.

    Raises:
        RuntimeError: the probe itself ended before its last case.
    """
    paths = [ROOT / "benchmarks", ROOT / "packages" / "arbiter" / "src"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths)), "OMP_NUM_THREADS": "1"}
    command = [python, "-m", "faults.tools.probe", str(jobs), str(limit_seconds), *names]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True) as probe,
    ):
        assert probe.stdout is not None
        for line in probe.stdout:
            if line.startswith('{"case"'):
                answer = json.loads(line)
                yield answer.pop("case"), answer
        if probe.wait():
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["nothing on stderr"])[-1]
            raise RuntimeError(f"the probe of the tools ended with exit code {probe.returncode}: {last}")
