"""A bundle: a folder with a model and a manifest that lists every file of it with its size and SHA-256.

`write_manifest` is the last step of an export, `verify` the first of a load. Nothing of a bundle is opened by
anyone before every byte is known to be the one that was proved. `docs/bundle-format.md` is the specification.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from mothertongue.errors import BundleError
from mothertongue.threads import allowed_cpus

FORMAT_VERSION = 1
MANIFEST_FILE = "manifest.json"
GRAPH_FILE = "model.onnx"
CONFIG_FILE = "config.json"
PARITY_FILE = "parity.json"
REQUIRED_FILES = (GRAPH_FILE, CONFIG_FILE, "tokenizer.json", "tokenizer_config.json")
MAXIMUM_MANIFEST_BYTES = 1 << 24
PIECE_BYTES = 1 << 24  # of a file that is hashed in pieces, so that several threads can share the work
HASHED_BYTES = 1 << 20  # at once: Python is free for other threads meanwhile
ONNXRUNTIME_DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")


@dataclass(frozen=True, kw_only=True)
class FileRecord:
    """One file of a bundle, as it was when it was proved."""

    sha256: str
    bytes: int
    pieces: Sequence[str] = ()  # SHA-256 of each PIECE_BYTES of a longer file, the last piece shorter

    def parts(self) -> Iterator[tuple[int, int, str]]:
        """Yield what is verified: begin and end of each part of the file, and its SHA-256."""
        if not self.pieces:
            yield 0, self.bytes, self.sha256
        for number, sha256 in enumerate(self.pieces):
            yield number * PIECE_BYTES, min((number + 1) * PIECE_BYTES, self.bytes), sha256

    def is_sound(self) -> bool:
        """Return whether these are a size and hashes of the form that the format asks for."""
        if not isinstance(self.bytes, int) or not isinstance(self.pieces, list | tuple):
            return False
        whole = not self.pieces or len(self.pieces) == -(-self.bytes // PIECE_BYTES)
        return whole and all(
            re.fullmatch("[0-9a-f]{64}", str(sha256)) for sha256 in (self.sha256, *self.pieces)
        )

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name != "pieces" or value}


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a bundle is: its files, what it needs, and where it came from."""

    format_version: int
    minimum_onnxruntime: str
    training_commit: str
    tokenizer_sha256: str
    recipe: Mapping[str, Any]  # as it was trained
    quantization: Sequence[Mapping[str, Any]]  # one row for each kind of weight
    parity: Mapping[str, Any]  # the verdict and headline figures of parity.json
    files: Mapping[str, FileRecord]  # by path, relative, with forward slashes

    @property
    def total_bytes(self) -> int:
        return sum(record.bytes for record in self.files.values())

    @property
    def model_sha256(self) -> str:
        """One hash for all that decides what the model says: graph, weights, tokenizer and settings."""
        names = [name for name in sorted(self.files) if name in REQUIRED_FILES or name.startswith(GRAPH_FILE)]
        hashes = {name: " ".join(sha256 for *_, sha256 in self.files[name].parts()) for name in names}
        listed = "".join(f"{hashes[name]}  {name}\n" for name in names)
        return hashlib.sha256(listed.encode()).hexdigest()

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Return the manifest of the bundle in `folder`, without looking at its files.

        Raises BundleError if there is none, or if this version cannot read it.
        """
        path = folder / MANIFEST_FILE
        if not folder.is_dir():
            raise BundleError(f"{folder}: no such bundle; make one with `make chat`")
        try:
            if path.stat().st_size > MAXIMUM_MANIFEST_BYTES:
                raise ValueError(f"{path.stat().st_size} bytes, at most {MAXIMUM_MANIFEST_BYTES} expected")
            fields = json.loads(path.read_text(encoding="utf-8"))
            version = fields["format_version"]
            if version != FORMAT_VERSION:
                raise BundleError(
                    f"{path}: format version {version}, this program reads {FORMAT_VERSION}; "
                    "update with: pip install -U mothertongue"
                )
            records = {name: FileRecord(**record) for name, record in fields.pop("files").items()}
            manifest = cls(files=records, **fields)
        except FileNotFoundError:
            raise BundleError(f"{path}: not found; {folder} is no bundle, or only part of one") from None
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise BundleError(f"{path}: not a manifest ({error}); copy or export the bundle again") from error
        for name, record in manifest.files.items():
            if not is_plain(name):
                raise BundleError(
                    f"{path}: the file {name!r} lies outside the bundle; do not use this bundle"
                )
            if not record.is_sound():
                raise BundleError(f"{path}: {name} has no size and hash; copy or export the bundle again")
        return manifest


def verify(folder: Path) -> Manifest:
    """Return the manifest of the bundle in `folder` after checking every file against it.

    Raises BundleError, naming the first problem: no manifest, another format version, too old an onnxruntime,
    a file missing, added, of another size or content.
    """
    manifest = Manifest.read(folder)
    require_onnxruntime(manifest.minimum_onnxruntime)
    again = "copy or export the bundle again"
    present = set(files_within(folder))
    for name in sorted({*REQUIRED_FILES, *manifest.files} - present):
        raise BundleError(f"{folder / name}: missing; {again}")
    for name in sorted(present - set(manifest.files)):
        raise BundleError(f"{folder / name}: not in the manifest; remove it, or {again}")
    for name, record in manifest.files.items():  # sizes first: they cost nothing, whatever lies there
        if any((folder / parent).is_symlink() for parent in list(PurePosixPath(name).parents)[:-1]):
            raise BundleError(f"{folder / name}: behind a link; copy the folder itself into the bundle")
        if (size := file_size(folder / name)) != record.bytes:
            raise BundleError(f"{folder / name}: {size} bytes, the manifest says {record.bytes}; {again}")
    parts = [(name, *part) for name, record in manifest.files.items() for part in record.parts()]
    with ThreadPoolExecutor(len(allowed_cpus())) as pool:
        hashes = pool.map(lambda part: part_sha256(folder / part[0], part[1], part[2]), parts)
        for (name, begin, end, sha256), found in zip(parts, hashes, strict=True):
            if found != sha256:
                pool.shutdown(wait=False, cancel_futures=True)
                where = f"of bytes {begin} to {end} " if manifest.files[name].pieces else ""
                raise BundleError(
                    f"{folder / name}: sha256 {where}is {found[:12]}, "
                    f"the manifest says {sha256[:12]}; {again}"
                )
    return manifest


def write_manifest(
    folder: Path,
    *,
    minimum_onnxruntime: str,
    training_commit: str,
    recipe: Mapping[str, Any],
    quantization: Sequence[Mapping[str, Any]],
    parity: Mapping[str, Any],
) -> Manifest:
    """Write `manifest.json` for the files now in `folder`, and return it. The last step of an export."""
    files = {name: file_record(folder / name) for name in sorted(files_within(folder))}
    manifest = Manifest(
        format_version=FORMAT_VERSION,
        minimum_onnxruntime=minimum_onnxruntime,
        training_commit=training_commit,
        tokenizer_sha256=files["tokenizer.json"].sha256,
        recipe=recipe,
        quantization=quantization,
        parity=parity,
        files=files,
    )
    temporary = folder / f".{MANIFEST_FILE}.tmp"
    fields = asdict(manifest) | {"files": {name: record.as_dict() for name, record in files.items()}}
    with temporary.open("w", encoding="utf-8") as file:
        json.dump(fields, file, ensure_ascii=False, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    # A rename within one file system is atomic: a reader sees no manifest or the whole one.
    os.replace(temporary, folder / MANIFEST_FILE)
    return manifest


def files_within(folder: Path) -> Iterator[str]:
    """Yield the path of every file of a bundle but the manifest, relative and with forward slashes.

    Hidden files are left out: file managers leave them behind, and no part of a bundle may have such a name.
    """
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        hidden = any(part.startswith(".") for part in name.parts)
        if not path.is_dir() and not hidden and name.as_posix() != MANIFEST_FILE:
            yield name.as_posix()


def is_plain(name: str) -> bool:
    """Return whether `name` is a relative path with forward slashes that stays within its folder."""
    path = PurePosixPath(name)
    inside = not path.is_absolute() and all(not part.startswith(".") for part in path.parts)
    return bool(path.parts) and inside and str(path) == name and not re.search(r"[\\:\0]", name)


def file_record(path: Path) -> FileRecord:
    """Return the size and SHA-256 of the file at `path`; raise BundleError if it is a link or no file."""
    size = file_size(path)
    begins = range(0, size, PIECE_BYTES) if size > PIECE_BYTES else ()
    pieces = [part_sha256(path, begin, min(begin + PIECE_BYTES, size)) for begin in begins]
    return FileRecord(sha256=part_sha256(path, 0, size), bytes=size, pieces=pieces)


def part_sha256(path: Path, begin: int, end: int) -> str:
    """Return the SHA-256 of the bytes from `begin` to `end` of the file at `path`."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(min(HASHED_BYTES, max(end - begin, 1))))
    with path.open("rb", buffering=0) as file:
        file.seek(begin)
        while count := file.readinto(buffer[: end - begin]):
            digest.update(buffer[:count])
            begin += count
    return digest.hexdigest()


def file_size(path: Path) -> int:
    """Return the size of the file at `path`; raise BundleError if it is a link or no file."""
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{path}: a link or a device, not a file; copy the file itself into the bundle")
    return path.stat().st_size


def require_onnxruntime(minimum: str) -> None:
    """Raise BundleError unless the installed onnxruntime is at least `minimum`, for example "1.23"."""
    installed = onnxruntime_version()
    if version_numbers(installed) < version_numbers(minimum):
        raise BundleError(
            f"onnxruntime {installed} is too old, this bundle needs {minimum}; "
            f"update with: pip install -U 'onnxruntime>={minimum}'"
        )


def onnxruntime_version() -> str:
    """Return the version of the installed onnxruntime without loading it."""
    for distribution in ONNXRUNTIME_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise BundleError("onnxruntime is not installed; install it with: pip install onnxruntime")


def version_numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: (1, 23, 0) for "1.23.0rc1"."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
