"""What `export --formats` can write: the proved bundle, and other homes for the same checkpoint beside it.

    bundles/NAME          bundle: what the runtime runs
    bundles/NAME-hf       hf: for transformers and vLLM
    bundles/NAME-gguf     gguf: for llama.cpp

Each home is refused before anything is written if it cannot be made, is read back before it is kept, and
appears whole or not at all. SHA256SUMS lists its files; a folder with other files is never replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mothertongue.bundle import FileRecord, file_record
from mothertongue.errors import BundleError, RecipeError
from mothertongue_export.checkpoint import Checkpoint, read_checkpoint
from mothertongue_export.gguf_file import STORAGES, require_gguf, write_gguf
from mothertongue_export.gguf_tokenizer import read_gguf_tokenizer
from mothertongue_export.home_card import gguf_card, huggingface_card
from mothertongue_export.huggingface_folder import check_huggingface, write_huggingface
from mothertongue_export.staging import staged
from mothertongue_trainer.progress import Progress, silent

BUNDLE = "bundle"
CARD_FILE, SUMS_FILE = "README.md", "SHA256SUMS"


@dataclass(frozen=True, kw_only=True)
class Format:
    """One other home: what must hold before it is written, and how it is written into an empty folder."""

    check: Callable[[Checkpoint], object]
    write: Callable[[Checkpoint, Path, str], None]  # the last is the model's name


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A home that nothing stood against when it was looked at."""

    format: str
    folder: Path
    name: str  # of the model
    checkpoint: Checkpoint


@dataclass(frozen=True, kw_only=True)
class Home:
    """A folder that was written, with the size and hash of every file in it."""

    format: str
    folder: Path
    files: dict[str, FileRecord]

    def as_dict(self) -> dict[str, Any]:
        files = {name: {"sha256": r.sha256, "bytes": r.bytes} for name, r in self.files.items()}
        return {"folder": str(self.folder), "files": files}


def chosen_formats(listed: str) -> list[str]:
    """Return the names in a comma-separated list, each once; raise RecipeError for one that is unknown."""
    names = [name.strip() for name in listed.split(",")]
    known = [BUNDLE, *FORMATS]
    for name in names:
        if name not in known:
            raise RecipeError(f"--formats {listed}: {name!r} is no format; known are {', '.join(known)}")
    return list(dict.fromkeys(names))


def home_folder(bundle: Path, name: str) -> Path:
    """Return where the format `name` goes: beside the bundle, whose folder must have a name of its own."""
    if bundle.name in ("", ".."):
        raise BundleError(f"{bundle}: names no folder beside which to write; say --out bundles/NAME")
    return bundle.with_name(f"{bundle.name}-{name}")


def plan_homes(checkpoint: Path, bundle: Path, names: Sequence[str]) -> list[Plan]:
    """Return how to write `names` beside `bundle`; what would stop one is raised now, before a long proof.

    Raises:
        CheckpointError: the checkpoint cannot be read, or its tokenizer has no place in the format.
        BundleError: a folder is in the way that no export wrote.
        MothertongueError: a package is missing.
    """
    if not names:
        return []
    model = read_checkpoint(checkpoint)
    plans = [
        Plan(format=name, folder=home_folder(bundle, name), name=bundle.name, checkpoint=model)
        for name in names
    ]
    for plan in plans:
        _refuse_foreign(plan.folder)
        FORMATS[plan.format].check(plan.checkpoint)
    return plans


def write_home(plan: Plan, *, progress: Progress = silent) -> Home:
    """Write a home, in place of an older one.

    Raises:
        CheckFailed: what is read back differs from the checkpoint; nothing was kept.
        BundleError: the folder cannot be written, the disk is full, or something else came in the way.
    """
    progress(f"Writing {plan.folder.name}", 0, None)
    with staged(plan.folder) as new:
        FORMATS[plan.format].write(plan.checkpoint, new, plan.name)
        files = {path.name: file_record(path) for path in sorted(new.iterdir())}
        sums = "".join(f"{record.sha256}  {file}\n" for file, record in files.items())
        (new / SUMS_FILE).write_text(sums, encoding="utf-8")
        _refuse_foreign(plan.folder)
    return Home(format=plan.format, folder=plan.folder, files=files)


def _refuse_foreign(folder: Path) -> None:
    """Raise BundleError if `folder` holds anything but what an export wrote there."""
    if not folder.exists():
        return
    try:
        lines = (folder / SUMS_FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    ours = {SUMS_FILE, *(line.partition("  ")[2] for line in lines)}
    if not lines or not {path.name for path in folder.iterdir()} <= ours:
        raise BundleError(f"{folder}: exists and no export wrote it; it is left as it is, name another --out")


def _write_huggingface(checkpoint: Checkpoint, folder: Path, name: str) -> None:
    write_huggingface(checkpoint, folder)
    (folder / CARD_FILE).write_text(huggingface_card(name, checkpoint), encoding="utf-8")


def _check_gguf(checkpoint: Checkpoint) -> None:
    require_gguf()
    read_gguf_tokenizer(checkpoint.folder, checkpoint.architecture.vocabulary)


def _write_gguf(checkpoint: Checkpoint, folder: Path, name: str) -> None:
    for storage in STORAGES:
        write_gguf(checkpoint, folder / f"{name}-{storage}.gguf", storage=storage, name=name)
    (folder / CARD_FILE).write_text(gguf_card(name, checkpoint), encoding="utf-8")


FORMATS = {
    "hf": Format(check=check_huggingface, write=_write_huggingface),
    "gguf": Format(check=_check_gguf, write=_write_gguf),
}
