"""Where a fault lies is tested in test_proof.py; here: what is right is never named, and what an error is."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3ForCausalLM

from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph
from mothertongue_export.places import (
    Place,
    expected_values,
    first_bad_place,
    relative_errors,
    run_in_pieces,
    value_names,
)
from mothertongue_export.quantization import FLOAT, Plan, Storage

IDS = np.random.default_rng(3).integers(6, 300, size=21).tolist()
HEAD = {"logits": Storage(bits=8, block_size=32), "embedded": Storage(bits=8, block_size=32)}


@pytest.mark.parametrize("kind", ["tied", "untied"])
@pytest.mark.parametrize("bits", [8, 4, 32])
def test_a_right_graph_has_no_bad_place(
    kind: str, bits: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    checkpoint = read_checkpoint(request.getfixturevalue(kind))
    storage = FLOAT if bits == 32 else Storage(bits=bits, block_size=128)
    plan = Plan(default=storage, exceptions=HEAD if bits == 4 else {})
    write_device_graph(checkpoint, tmp_path, plan=plan)
    assert first_bad_place(tmp_path, checkpoint, IDS, bits=bits) is None


def test_every_layer_is_looked_at_from_embedding_to_logits(tied: Path, tmp_path: Path) -> None:
    checkpoint = read_checkpoint(tied)
    write_device_graph(checkpoint, tmp_path, plan=Plan(default=FLOAT))
    values = run_in_pieces(tmp_path, checkpoint.architecture, IDS, [10])
    looked_at = [name for name, _, _ in expected_values(checkpoint, values, IDS)]
    assert looked_at == [name for name in value_names(checkpoint.architecture) if name != "embedded_width"]
    assert set(looked_at) == set(values)


def test_the_values_are_those_of_transformers(tied: Path, tmp_path: Path) -> None:
    """The recomputation in NumPy is a second opinion; this is a third, that shares no code with either."""
    checkpoint = read_checkpoint(tied)
    write_device_graph(checkpoint, tmp_path, plan=Plan(default=FLOAT))
    values = run_in_pieces(tmp_path, checkpoint.architecture, IDS, [10, 11])
    expected = {name: value for name, _, value in expected_values(checkpoint, values, IDS)}
    network = Qwen3ForCausalLM.from_pretrained(tied, attn_implementation="eager").eval()
    with torch.no_grad():
        found = network(torch.tensor([IDS]), output_hidden_states=True)
    np.testing.assert_allclose(expected["logits"], found.logits[0], atol=2e-5)
    last = found.hidden_states[-1][0]
    np.testing.assert_allclose(expected["model.norm.normed"], last, atol=2e-5)


def test_an_error_is_a_share_of_the_size_of_its_position() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 5.0], [1e-6, 0.0]])
    found = expected + np.array([[0.5, 0.0], [0.0, 0.0], [1e-6, 0.0]])
    errors = relative_errors(found, expected)
    assert errors[0] == pytest.approx(0.1)
    assert errors[1] == 0
    assert errors[2] < 1e-5  # next to nothing is not measured against itself


def test_a_place_says_from_where_on_it_is_off() -> None:
    place = Place(node="logits", error=0.5, limit=0.05, position=11, boundaries=[10, 11])
    assert str(place) == (
        "logits: first bad place; off by 0.5, 0.05 allowed, from position 11 on (a piece began at 11)"
    )
