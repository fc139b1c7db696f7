import numpy as np
import pytest

from mothertongue_trainer.heldout_rows import HeldOutRows
from mothertongue_trainer.model import IGNORED

BOS, END = 0, 4
DOCUMENTS = [[BOS, 11, 12, END], [BOS, 21, END], [BOS, 31, 32, 33, END]]


def test_documents_follow_each_other_and_no_label_crosses_one() -> None:
    rows = HeldOutRows(DOCUMENTS, row_tokens=5, batch_rows=2)
    batch = rows.batch(0)
    x = IGNORED
    assert batch.tokens.tolist() == [[BOS, 11, 12, END, BOS], [21, END, BOS, 31, 32]]
    assert batch.targets.tolist() == [[11, 12, END, x, x], [END, x, 31, 32, x]]
    assert batch.documents.tolist() == [[1, 1, 1, 1, 2], [2, 2, 3, 3, 3]]
    with pytest.raises(IndexError, match="batch 1 of 2 held-out rows"):
        rows.batch(1)


def test_the_last_batch_may_have_fewer_rows() -> None:
    rows = HeldOutRows(DOCUMENTS, row_tokens=4, batch_rows=2)
    assert rows.batch(0).tokens.shape == (2, 4)
    assert rows.batch(1).tokens.tolist() == [[31, 32, 33, END]]


def test_too_little_text_gives_no_batch() -> None:
    for documents in ([], [[BOS, END]]):
        with pytest.raises(IndexError, match="of 0"):
            HeldOutRows(documents, row_tokens=4, batch_rows=2).batch(0)


def test_the_rows_are_those_of_the_evaluated_documents(encoded_run) -> None:
    batch = HeldOutRows.open(encoded_run.recipe, encoded_run.folder).batch(0)
    assert batch.tokens.shape[1] == encoded_run.recipe.training.sequence_tokens
    assert batch.tokens[0, 0] == BOS
    assert (np.diff(batch.documents, axis=1) >= 0).all()
