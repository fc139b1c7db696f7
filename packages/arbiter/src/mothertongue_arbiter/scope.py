"""What a certificate depends on: a change of any of it makes the certificate stale."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

OWN = "mothertongue_arbiter"


@dataclass(frozen=True, kw_only=True)
class Revision:
    """The commit of a working folder; None outside a repository."""

    commit: str | None
    dirty: bool | None  # whether tracked files differ from it


def revision() -> Revision:
    """Return the commit of the working folder."""
    commit = _git("rev-parse", "HEAD")
    status = _git("status", "--porcelain", "--untracked-files=no")
    return Revision(commit=commit, dirty=None if commit is None or status is None else bool(status))


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def sha256_of(*parts: str | bytes) -> str:
    """Return one hash of these texts, each with its length, so that no two lists of them are alike."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


@cache
def arbiter_sha256() -> str:
    """Return the hash of the arbiter's own source: another battery is another certificate."""
    folder = Path(__file__).parent
    paths = sorted(folder.rglob("*.py"))
    return sha256_of(*(part for path in paths for part in (str(path.relative_to(folder)), path.read_bytes())))


def code_of(roots: Iterable[str]) -> Mapping[str, str]:
    """Return the hash of the source of these modules, and of what they import of their own project.

    Libraries are told by their version instead: modules in site-packages are hashed only when they are
    among the roots, as the file of a model that transformers defines.
    """
    found: dict[str, str] = {}
    pending = list(roots)
    while pending:
        name = pending.pop()
        module = sys.modules.get(name)
        path = _source(module)
        if name in found or module is None or path is None or name.partition(".")[0] in (OWN, "torch"):
            continue
        found[name] = sha256_of(path.read_bytes())
        if not _is_library(path):
            pending += [
                other for other in _named_in(module) if not _is_library(_source(sys.modules.get(other)))
            ]
    return dict(sorted(found.items()))


def _named_in(module: ModuleType) -> Iterator[str]:
    """Yield the modules that the names in `module` are, or come from."""
    for value in list(vars(module).values()):
        name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
        if isinstance(name, str):
            yield name


def _source(module: ModuleType | None) -> Path | None:
    file = getattr(module, "__file__", None)
    return Path(file) if file and file.endswith(".py") and Path(file).is_file() else None


@cache  # a program names some thousand modules, most of them more than once
def _is_library(path: Path | None) -> bool:
    return path is None or any(path.resolve().is_relative_to(place) for place in _libraries())


@cache
def _libraries() -> tuple[Path, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({Path(sysconfig.get_path(name)).resolve() for name in names})
