"""The rows that a run trains on: a pure function of recipe, token shards and step.

Nothing is remembered between steps, so an interrupted run continues with exactly the rows it would have seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mothertongue.errors import DataError
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.model import IGNORED
from mothertongue_trainer.plan import Component, Plan, make_plan
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.shards import Integers, Shard

PADDING_DOCUMENT = 0


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The rows of one optimizer step."""

    tokens: Integers  # (B, T) <|pad|> where a row has room left
    targets: Integers  # (B, T) the next token of the same document if it is learned, else IGNORED
    documents: Integers  # (B, T) 1, 2, ... along each row; PADDING_DOCUMENT for padding


class Rows:
    """All rows of one run. Open it with `Rows.open`."""

    def __init__(
        self,
        shards: Sequence[Shard],
        plan: Plan,
        *,
        run_folder: Path,
        row_tokens: int,
        batch_rows: int,
        pad: int,
    ) -> None:
        self.run_folder = run_folder
        self._shards = shards
        self._plan = plan
        self._row_tokens = row_tokens
        self._batch_rows = batch_rows
        self._pad = pad

    @classmethod
    def open(cls, recipe: Recipe, run_folder: Path) -> Rows:
        """Map the shards of `run_folder` into memory and plan every row of the run.

        Raises:
            DataError: a shard is missing, or was made by another tokenizer than the run folder's.
        """
        mixture = recipe.corpus.mixture
        paths = [run_folder / "tokens" / f"{name}.safetensors" for name in mixture]
        shards = [Shard.open(path) for path in paths]
        tokenizer_sha256 = hash_tokenizer(run_folder / "tokenizer")
        for path, shard in zip(paths, shards, strict=True):
            if shard.metadata["vocabulary"] != str(recipe.tokenizer.vocabulary):
                raise DataError(
                    f"{path}: its tokenizer has {shard.metadata['vocabulary']} entries, the recipe asks for "
                    f"{recipe.tokenizer.vocabulary}; run `mothertongue tokenizer` again"
                )
            if shard.metadata["tokenizer_sha256"] != tokenizer_sha256:
                raise DataError(
                    f"{path}: made by another tokenizer than {run_folder / 'tokenizer'}; "
                    "run `mothertongue tokenizer` again"
                )
        components = [
            Component(name=name, share=share, offsets=shard.offsets, characters=shard.characters)
            for (name, share), shard in zip(mixture.items(), shards, strict=True)
        ]
        row_tokens, batch_rows = recipe.training.sequence_tokens, recipe.training.batch_sequences
        plan = make_plan(components, rows=recipe.steps * batch_rows, row_tokens=row_tokens, seed=recipe.seed)
        pad = int(shards[0].metadata["pad"])
        return cls(shards, plan, run_folder=run_folder, row_tokens=row_tokens, batch_rows=batch_rows, pad=pad)

    @property
    def steps(self) -> int:
        return (len(self._plan.offsets) - 1) // self._batch_rows

    @property
    def identity(self) -> dict[str, str]:
        """What makes these rows the same ones: their tokenizer, and every shard by its lengths."""
        digest = hashlib.sha256()
        for shard in self._shards:
            digest.update(json.dumps(shard.metadata, sort_keys=True).encode())
            digest.update(shard.offsets.tobytes() + shard.characters.tobytes())
        return {"tokenizer": self._shards[0].metadata["tokenizer_sha256"], "data": digest.hexdigest()}

    @property
    def padding_share(self) -> float:
        """The share of the run's tokens that is padding."""
        planned = int(self._plan.pieces.length.sum())
        return 1 - planned / ((len(self._plan.offsets) - 1) * self._row_tokens)

    def batch(self, step: int) -> Batch:
        """Return the rows of step `step`, counted from 0.

        Raises:
            IndexError: the run has no such step.
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} of a run of {self.steps} steps")
        shape = (self._batch_rows, self._row_tokens)
        batch = Batch(
            tokens=np.full(shape, self._pad, dtype=np.int64),
            targets=np.full(shape, IGNORED, dtype=np.int64),
            documents=np.full(shape, PADDING_DOCUMENT, dtype=np.int64),
        )
        for row in range(self._batch_rows):
            self._fill(batch, row, step * self._batch_rows + row)
        return batch

    def _fill(self, batch: Batch, row: int, planned_row: int) -> None:
        pieces = self._plan.pieces
        at = 0
        first, end = self._plan.offsets[planned_row : planned_row + 2].tolist()
        for document, piece in enumerate(range(first, end), start=PADDING_DOCUMENT + 1):
            shard = self._shards[pieces.component[piece]]
            start, length = int(pieces.start[piece]), int(pieces.length[piece])
            here, labels = slice(at, at + length), slice(start + 1, start + 1 + length)
            batch.tokens[row, here] = shard.tokens[start : start + length]
            batch.targets[row, here] = np.where(
                shard.learn[labels], shard.tokens[labels].astype(np.int64), IGNORED
            )
            batch.documents[row, here] = document
            at += length
