"""What makes a tokenizer the same one: the bytes of its file, not the number of its entries."""

from __future__ import annotations

import hashlib
from pathlib import Path

from mothertongue.errors import DataError
from mothertongue.tokenizer import TOKENIZER_FILE


def hash_tokenizer(folder: Path) -> str:
    """Return the SHA-256 of the tokenizer.json in `folder`.

    Raises:
        DataError: there is none.
    """
    path = folder / TOKENIZER_FILE
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise DataError(f"{path}: missing; run `mothertongue tokenizer` with this recipe") from None
