import os
from pathlib import Path

import numpy as np
import torch
from transformers import Qwen3ForCausalLM

from mothertongue_export.pytorch import PyTorchModel, quiet


def test_logits_are_those_of_transformers_for_every_position(tied: Path) -> None:
    ids = [[0, 9, 7, 12], [0, 3, 30, 4]]
    with torch.no_grad():
        expected = Qwen3ForCausalLM.from_pretrained(tied).eval()(torch.tensor(ids)).logits.numpy()
    np.testing.assert_allclose(
        PyTorchModel.open(tied).logits(ids), expected, atol=1e-5
    )  # sdpa sums otherwise


def test_quiet_lets_nothing_through(capfd: object) -> None:
    import warnings

    with quiet():
        print("a line")
        warnings.warn("a warning", stacklevel=1)
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    assert capfd.readouterr() == ("", "")  # type: ignore[attr-defined]
