"""A token shard: the documents of one component as one run of tokens, in a safetensors file.

    "tokens"      uint16 (tokens,)        documents one after the other, special tokens included
    "learn"       uint8 (tokens,)         1 where the token is a label that counts
    "offsets"     int64 (documents + 1,)  document i is tokens[offsets[i]:offsets[i + 1]]
    "characters"  int64 (documents,)      Unicode code points of its text, the unit of the mixture

16 bits a token: vocabularies end at 65,536.
"""

from __future__ import annotations

import json
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mothertongue.errors import DataError
from mothertongue_trainer.writing import writing

Tokens: TypeAlias = npt.NDArray[np.uint16]
Flags: TypeAlias = npt.NDArray[np.uint8]
Integers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The arrays of one shard and what its header says; memory-mapped where it was opened from a file."""

    tokens: Tokens
    learn: Flags
    offsets: Integers
    characters: Integers
    metadata: dict[str, str]

    def save(self, path: Path) -> None:
        """Write the shard to `path`; raise OSError if that is impossible."""
        arrays: dict[str, npt.NDArray[Any]] = {
            "tokens": self.tokens, "learn": self.learn,
            "offsets": self.offsets, "characters": self.characters,
        }  # fmt: skip
        with writing(path):
            save_file(arrays, path, metadata=self.metadata)

    @classmethod
    def open(cls, path: Path) -> Shard:
        """Map the shard at `path` into memory; pages are read as they are used.

        Raises:
            DataError: the file is missing or is not a shard.
        """
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            arrays, metadata = _map_safetensors(mapped)
            return cls(**arrays, metadata=metadata)
        except FileNotFoundError:
            raise DataError(f"{path}: missing; run `mothertongue tokenizer` with this recipe") from None
        except (ValueError, KeyError, TypeError):
            raise DataError(f"{path}: not a token shard; run `mothertongue tokenizer` again") from None


def _map_safetensors(mapped: mmap.mmap) -> tuple[dict[str, Any], dict[str, str]]:
    """Return views of the arrays in a safetensors file: the library itself would copy them into memory.

    Format: 8 bytes little-endian size of the header, the header as JSON, then the data.
    """
    data_start = 8 + int.from_bytes(mapped[:8], "little")
    header = json.loads(mapped[8:data_start])
    metadata = header.pop("__metadata__")
    kinds = {"U8": np.uint8, "U16": np.uint16, "I64": np.int64}
    arrays = {
        name: np.frombuffer(
            mapped,
            dtype=kinds[entry["dtype"]],
            count=entry["shape"][0],
            offset=data_start + entry["data_offsets"][0],
        )
        for name, entry in header.items()
    }
    return arrays, metadata
