"""A folder that appears whole under its name, or not at all; what a killed export left is taken away.

The hidden folder lies beside the target, so that the last step is a rename within one file system. It is
locked while its export lives; one that nobody holds is the rest of a killed export.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mothertongue.errors import BundleError, CheckpointError
from mothertongue_trainer.lock import run_lock

NEW, OLD = "new", "old"
# What its reader can mend; another error of the system is a bug.
UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def staged(bundle: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `bundle` at the end, and goes away on any error.

    Raises:
        BundleError: the folder cannot be written, or the disk is full; `bundle` is as it was.
    """
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)
        clear_remains(bundle)
        staging = Path(tempfile.mkdtemp(prefix=f".{bundle.name}.", dir=bundle.parent))
    except OSError as error:
        raise BundleError(f"{bundle.parent}: {error.strerror}; name a folder that can be written") from None
    try:
        with run_lock(staging):
            (staging / NEW).mkdir()
            yield staging / NEW
            _take_place(staging, bundle)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        raise BundleError(
            f"{error.filename or bundle}: {error.strerror}; {bundle} is as it was, make room and export again"
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def clear_remains(bundle: Path) -> None:
    """Take away what killed exports to `bundle` left; a bundle that one had moved aside comes back."""
    for staging in bundle.parent.iterdir():
        ours = staging.name.startswith(f".{bundle.name}.") and (staging / "run.lock").is_file()
        if not ours:
            continue
        with contextlib.suppress(CheckpointError), run_lock(staging):  # held: an export is at work there
            if (staging / OLD).exists() and not bundle.exists():
                os.replace(staging / OLD, bundle)
            shutil.rmtree(staging, ignore_errors=True)


def _take_place(staging: Path, bundle: Path) -> None:
    older = staging / OLD
    try:
        if bundle.exists():
            os.replace(bundle, older)
        os.replace(staging / NEW, bundle)
    except BaseException:
        if older.exists() and not bundle.exists():
            os.replace(older, bundle)
        raise
