"""What libraries say of a full disk, in the one form that the command line shows as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raise OSError when a library fails to write `path` in a way of its own.

    safetensors raises SafetensorError then, tokenizers a bare Exception; any other error is a bug and passes.
    """
    try:
        yield
    except Exception as error:
        if type(error) not in (SafetensorError, Exception):
            raise
        raise OSError(f"{path}: cannot be written: {error}; make room and start again") from error
