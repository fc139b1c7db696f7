"""One run at a time in a folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from mothertongue.errors import CheckpointError


@contextmanager
def run_lock(run_folder: Path) -> Iterator[None]:
    """Hold `run_folder` for this process; the system lets go when the process ends, however it ends.

    Raises:
        CheckpointError: another process is at work in the folder.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    path = run_folder / "run.lock"
    with path.open("a+", encoding="utf-8") as file:
        if not _lock(file):
            file.seek(0)
            raise CheckpointError(
                f"{run_folder}: process {file.read().strip() or 'unknown'} is at work here already; "
                "wait for it, or stop it with Ctrl-C first"
            )
        file.seek(0)
        file.truncate()
        file.write(str(os.getpid()))
        file.flush()
        yield


def _lock(file: IO[str]) -> bool:
    """Take the lock of an open file without waiting; return whether that worked."""
    try:
        if sys.platform == "win32":
            import msvcrt

            # Beyond the text: Windows forbids others to read what is locked.
            file.seek(1024)
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
