"""Which code and which libraries made an artefact."""

from __future__ import annotations

import platform
import subprocess
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("mothertongue", "mothertongue-trainer", "mothertongue-arbiter", "torch", "numpy", "safetensors")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide the result of a training."""
    return {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}}


def code_commit() -> str | None:
    """Return the commit of this code, None when it was installed without its repository."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
