import dataclasses
from pathlib import Path

import numpy as np

from mothertongue.chat import Message
from mothertongue.tokenizer import Tokenizer
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.oracle import Oracle, open_oracle
from mothertongue_export.pytorch import PyTorchModel, RememberedModel
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import silent


def test_an_oracle_has_the_text_the_questions_and_the_distance_of_the_plain_graph(oracle: Oracle) -> None:
    assert 0 < oracle.reference_max_abs < 1e-4
    assert {text.language for text in oracle.texts} == {"bn", "en"}
    assert len(oracle.questions) == 14
    assert oracle.calibration_ids.size >= 256
    assert oracle.fitting_ids.size == 0  # the proof reads every document


def test_a_matrix_is_never_fitted_to_text_of_the_proof(tied: Path, heldout: list[Document]) -> None:
    """More text than the proof reads: by its ids, no row of the fit stands in it."""
    many = [
        dataclasses.replace(heldout[n % 14], id=f"{n}", text=f"{n} {heldout[n % 14].text}")
        for n in range(750)
    ]
    talks = [
        Document(
            id=f"t{n}",
            language="en",
            component="t",
            messages=(Message("user", f"{n:02} tree?"), Message("assistant", "গাছ")),
        )
        for n in range(30)
    ]
    opened = open_oracle(read_checkpoint(tied), heldout=many, conversations=talks, progress=silent)
    with opened as oracle:
        proved = " ".join(f"{token}" for text in oracle.texts for token in text.ids)
        assert oracle.fitting_ids.size > 4000
        for row in oracle.fitting_ids:
            inner = [f"{token}" for token in row]
            begin = inner.index("0") if "0" in inner else 0  # a document with its number
            assert " ".join(inner[begin : begin + 20]) not in proved
        told = Tokenizer.open(tied).decode(oracle.fitting_ids.reshape(-1).tolist())
        assert len(oracle.questions) == 20
        assert not any(question in told for question in oracle.questions)
        assert "20 tree?" in told


def test_a_remembered_model_gives_the_same_logits_again_without_computing(tied: Path, tmp_path: Path) -> None:
    model = PyTorchModel.open(tied)
    remembered = RememberedModel(model.network, tmp_path)
    one, two = [[1, 2, 3]], [[1, 2]]
    np.testing.assert_array_equal(remembered.logits(one), model.logits(one))
    np.testing.assert_array_equal(remembered.logits(two), model.logits(two))
    del remembered.network
    np.testing.assert_array_equal(remembered.logits(one), model.logits(one))
    np.testing.assert_array_equal(remembered.logits(np.array(two)), model.logits(two))


def test_greedy_text_of_pytorch_is_what_its_logits_prefer(tied: Path) -> None:
    model = PyTorchModel.open(tied)
    prompt = [0, 9, 12]
    written = model.greedy(prompt, 10, 4)
    rows = model.logits([[*prompt, *written]])[0, len(prompt) - 1 : -1]
    assert rows.argmax(axis=1).tolist() == written
    assert 4 not in written[:-1]
