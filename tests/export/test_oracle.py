from pathlib import Path

import numpy as np

from mothertongue_export.oracle import Oracle
from mothertongue_export.pytorch import PyTorchModel, RememberedModel


def test_an_oracle_has_the_text_the_questions_and_the_distance_of_the_plain_graph(oracle: Oracle) -> None:
    assert 0 < oracle.reference_max_abs < 1e-4
    assert {text.language for text in oracle.texts} == {"bn", "en"}
    assert len(oracle.questions) == 14
    assert oracle.calibration_ids.size >= 256


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
