"""The dictionary's database: fetched once as a pinned wheel, proved by its hash, never installed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from mothertongue.errors import DataError

DATABASE = "shobdo/data/dictionary.db"  # the one file of the wheel that is read
DOWNLOAD_SECONDS = 900


def cache_folder() -> Path:
    """Return where downloads are kept: $MOTHERTONGUE_CACHE, or ~/.cache/mothertongue."""
    return Path(os.environ.get("MOTHERTONGUE_CACHE") or Path.home() / ".cache" / "mothertongue")


def fetch_database(package: str, sha256: str) -> Path:
    """Return the SQLite file inside the wheel of `package` ("name==version"), downloading it at most once.

    Raises:
        DataError: no network, not the pinned file, or a wheel without a dictionary.
    """
    folder = cache_folder()
    database = folder / f"{sha256}.db"  # named by the wheel's hash, so another pin never finds it
    if database.exists():
        return database
    name, _, version = package.partition("==")
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not wheel.exists():
            _download(package, wheel)
        _check(wheel, sha256)
        _extract(wheel, database)
    except OSError as error:
        raise DataError(
            f"{folder}: {error.strerror or error}; free some space or set MOTHERTONGUE_CACHE"
        ) from None
    return database


def _download(package: str, wheel: Path) -> None:
    """Let pip download the wheel beside its place, then rename it there."""
    with tempfile.TemporaryDirectory(dir=wheel.parent) as temporary:
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary=:none:", "--only-binary=:all:",
            "--disable-pip-version-check", "--quiet", "--dest", temporary, package,
        ]  # fmt: skip
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS, check=False
            )
            reason = (done.stderr.strip().splitlines() or ["pip gave no reason"])[-1]
        except subprocess.TimeoutExpired:
            reason = f"no answer in {DOWNLOAD_SECONDS} seconds"
        found = list(Path(temporary).glob("*.whl"))
        if len(found) != 1:
            raise DataError(
                f"{package}: pip could not download it ({reason}); with a network elsewhere, fetch "
                f"{wheel.name} and put it into {wheel.parent}, or name your own text in [[corpus.files]]"
            )
        os.replace(found[0], wheel)


def _check(wheel: Path, sha256: str) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if found != sha256:
        wheel.unlink()
        raise DataError(
            f"{wheel}: sha256 {found} found, {sha256} expected; deleted; start again to fetch it anew"
        )


def _extract(wheel: Path, database: Path) -> None:
    temporary = database.with_suffix(f".{os.getpid()}.tmp")
    try:
        with zipfile.ZipFile(wheel) as archive, temporary.open("wb") as out:
            out.write(archive.read(DATABASE))
            out.flush()
            os.fsync(out.fileno())
        os.replace(temporary, database)
    except (KeyError, zipfile.BadZipFile):
        raise DataError(
            f"{wheel}: {DATABASE} expected in it, not found; check corpus.dictionary.package"
        ) from None
    finally:
        temporary.unlink(missing_ok=True)
