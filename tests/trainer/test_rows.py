import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.document import read_documents
from mothertongue_trainer.plan import Pieces, Plan
from mothertongue_trainer.rows import IGNORED, Rows
from mothertongue_trainer.shards import Shard
from mothertongue_trainer.tokens import DocumentEncoder

BOS, END, PAD = 0, 4, 5


def documents_in(tokens: np.ndarray, documents: np.ndarray) -> list[list[int]]:
    """Return the pieces of one row, told apart by their numbers."""
    return [tokens[documents == number].tolist() for number in range(1, documents.max() + 1)]


def test_two_small_rows_by_hand() -> None:
    shard = Shard(
        tokens=np.array([BOS, 11, 12, END, BOS, 1, 21, 2, 31, END], dtype=np.uint16),
        learn=np.array([0, 1, 1, 1, 0, 0, 0, 0, 1, 1], dtype=np.uint8),
        offsets=np.array([0, 4, 10]),
        characters=np.array([2, 2]),
        metadata={},
    )
    # Row 0: the prose (3 inputs) and the start of the chat; row 1: the rest of it.
    pieces = Pieces(
        component=np.zeros(3, dtype=np.uint8), start=np.array([0, 4, 7]), length=np.array([3, 3, 2])
    )
    plan = Plan(pieces=pieces, offsets=np.array([0, 2, 3]))
    rows = Rows([shard], plan, run_folder=Path(), row_tokens=6, batch_rows=2, pad=PAD)
    batch = rows.batch(0)
    assert batch.tokens.tolist() == [[BOS, 11, 12, BOS, 1, 21], [2, 31, PAD, PAD, PAD, PAD]]
    x = IGNORED
    assert batch.targets.tolist() == [[11, 12, END, x, x, x], [31, END, x, x, x, x]]
    assert batch.documents.tolist() == [[1, 1, 1, 2, 2, 2], [1, 1, 0, 0, 0, 0]]
    assert rows.steps == 1
    assert rows.padding_share == pytest.approx(4 / 12)


def test_every_piece_is_a_stretch_of_a_document_and_its_labels_follow_it(encoded_run) -> None:
    """No label crosses a document, none is missing, and prompts are not learned."""
    encoder = DocumentEncoder(encoded_run.folder / "tokenizer")
    known: dict[tuple[int, ...], list[int]] = {}  # a piece's tokens -> its labels
    for name in encoded_run.recipe.corpus.mixture:
        documents = list(read_documents(encoded_run.folder / "corpus" / f"{name}.jsonl"))
        for ids, learn in encoder.encode(documents):
            labels = [token if learned else IGNORED for token, learned in zip(ids, learn, strict=True)]
            for start in range(0, len(ids) - 1, 64):
                end = min(start + 64, len(ids) - 1)
                known[tuple(ids[start:end])] = labels[start + 1 : end + 1]
    rows = Rows.open(encoded_run.recipe, encoded_run.folder)
    for step in range(rows.steps):
        batch = rows.batch(step)
        for row in range(8):
            pieces = documents_in(batch.tokens[row], batch.documents[row])
            labels = documents_in(batch.targets[row], batch.documents[row])
            assert [known[tuple(piece)] for piece in pieces] == labels
            padding = batch.documents[row] == 0
            assert (batch.tokens[row][padding] == PAD).all()
            assert (batch.targets[row][padding] == IGNORED).all()


def test_held_out_text_never_appears(encoded_run) -> None:
    encoder = DocumentEncoder(encoded_run.folder / "tokenizer")
    heldout = list(read_documents(encoded_run.folder / "corpus" / "heldout.jsonl"))
    first_pieces = {tuple(ids[: min(64, len(ids) - 1)]) for ids, _ in encoder.encode(heldout)}
    rows = Rows.open(encoded_run.recipe, encoded_run.folder)
    seen = set()
    for step in range(rows.steps):
        batch = rows.batch(step)
        for row in range(8):
            seen.update(map(tuple, documents_in(batch.tokens[row], batch.documents[row])))
    assert len(seen) > 300
    assert not seen & first_pieces


def test_a_batch_depends_on_nothing_but_its_step(encoded_run) -> None:
    forwards, backwards = (Rows.open(encoded_run.recipe, encoded_run.folder) for _ in range(2))
    expected = [forwards.batch(step) for step in range(10)]
    for step in reversed(range(10)):
        batch = backwards.batch(step)
        for field in ("tokens", "targets", "documents"):
            np.testing.assert_array_equal(getattr(batch, field), getattr(expected[step], field))
    reseeded = Rows.open(dataclasses.replace(encoded_run.recipe, seed=4), encoded_run.folder)
    assert (reseeded.batch(0).tokens != expected[0].tokens).any()


def test_a_run_has_the_steps_of_its_recipe(encoded_run) -> None:
    rows = Rows.open(encoded_run.recipe, encoded_run.folder)
    assert rows.steps == encoded_run.recipe.steps == 40
    assert rows.padding_share < 0.03
    for step in (-1, 40):
        with pytest.raises(IndexError, match="of a run of 40 steps"):
            rows.batch(step)


def test_shards_of_another_tokenizer_are_refused(encoded_run, tmp_path: Path) -> None:
    config = dataclasses.replace(encoded_run.recipe.tokenizer, vocabulary=512)
    with pytest.raises(DataError, match=r"its tokenizer has 600 entries, the recipe asks for 512"):
        Rows.open(dataclasses.replace(encoded_run.recipe, tokenizer=config), encoded_run.folder)
    with pytest.raises(DataError, match="missing; run"):
        Rows.open(encoded_run.recipe, tmp_path)


def test_shards_of_a_tokenizer_of_the_same_size_but_other_bytes_are_refused(
    encoded_run, tmp_path: Path
) -> None:
    for name in ("tokenizer", "tokens"):
        shutil.copytree(encoded_run.folder / name, tmp_path / name)
    Rows.open(encoded_run.recipe, tmp_path)
    path = tmp_path / "tokens" / "english.safetensors"
    shard = Shard.open(path)
    stale = dataclasses.replace(shard, metadata={**shard.metadata, "tokenizer_sha256": "0" * 64})
    path.unlink()
    stale.save(path)  # one shard alone
    with pytest.raises(DataError, match=r"english\.safetensors: made by another tokenizer .* again"):
        Rows.open(encoded_run.recipe, tmp_path)
    shutil.copy(encoded_run.folder / "tokens" / "english.safetensors", path)
    with (tmp_path / "tokenizer" / "tokenizer.json").open("a", encoding="utf-8") as file:
        file.write("\n")
    with pytest.raises(DataError, match="made by another tokenizer"):
        Rows.open(encoded_run.recipe, tmp_path)


def test_rows_of_another_text_or_tokenizer_are_other_rows() -> None:
    def rows(offsets: list[int], tokenizer: str) -> Rows:
        shard = Shard(
            tokens=np.zeros(10, dtype=np.uint16),
            learn=np.zeros(10, dtype=np.uint8),
            offsets=np.array(offsets),
            characters=np.array([2, 2]),
            metadata={"tokenizer_sha256": tokenizer},
        )
        empty = Pieces(component=np.zeros(0, dtype=np.uint8), start=np.zeros(0), length=np.zeros(0))
        plan = Plan(pieces=empty, offsets=np.zeros(1))
        return Rows([shard], plan, run_folder=Path(), row_tokens=6, batch_rows=2, pad=PAD)

    first = rows([0, 4, 10], "a").identity
    assert first == rows([0, 4, 10], "a").identity
    assert first["data"] != rows([0, 5, 10], "a").identity["data"]
    assert first["tokenizer"] == "a" != rows([0, 4, 10], "b").identity["tokenizer"]
