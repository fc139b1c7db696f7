"""The held-out text as rows, so that the arbiter can look for it in the rows of the training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mothertongue_trainer.document import read_documents
from mothertongue_trainer.evaluation import heldout_texts
from mothertongue_trainer.model import IGNORED
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.rows import Batch
from mothertongue_trainer.tokens import DocumentEncoder


def heldout_path(run_folder: Path) -> Path:
    """Return where `mothertongue prepare` puts the held-out text; a recipe may hold none out."""
    return run_folder / "corpus" / "heldout.jsonl"


class HeldOutRows:
    """Held-out documents one after the other, cut into full rows; a rest shorter than a row is left out."""

    def __init__(self, documents: Sequence[Sequence[int]], *, row_tokens: int, batch_rows: int) -> None:
        self._batch_rows = batch_rows
        lengths = [len(ids) for ids in documents]
        rows = sum(lengths) // row_tokens
        stream = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in documents] or [np.zeros(0, int)])
        numbers = np.repeat(np.arange(1, len(documents) + 1), lengths)
        self._tokens = stream[: rows * row_tokens].reshape(rows, row_tokens)
        self._documents = numbers[: rows * row_tokens].reshape(rows, row_tokens)

    @classmethod
    def open(cls, recipe: Recipe, run_folder: Path) -> HeldOutRows:
        """Read the documents that `mothertongue evaluate` measures, of every language.

        Raises:
            DataError: no held-out text or no tokenizer in `run_folder`.
        """
        texts = heldout_texts(
            read_documents(heldout_path(run_folder)),
            DocumentEncoder(run_folder / "tokenizer"),
            documents_per_language=recipe.evaluation.documents,
        )
        return cls(
            [ids for text in texts.values() for ids in text.ids],
            row_tokens=recipe.training.sequence_tokens,
            batch_rows=recipe.training.batch_sequences,
        )

    def batch(self, number: int) -> Batch:
        """Return batch `number`, counted from 0; the last one may have fewer rows.

        Raises:
            IndexError: there are no more.
        """
        chosen = slice(number * self._batch_rows, (number + 1) * self._batch_rows)
        tokens, documents = self._tokens[chosen], self._documents[chosen]
        if not len(tokens):
            raise IndexError(f"batch {number} of {len(self._tokens)} held-out rows")
        targets = np.full_like(tokens, IGNORED)
        within = documents[:, 1:] == documents[:, :-1]
        targets[:, :-1][within] = tokens[:, 1:][within]
        return Batch(tokens=tokens, targets=targets, documents=documents)
