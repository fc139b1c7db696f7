import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import Qwen3ForCausalLM

from mothertongue.errors import CheckpointError
from mothertongue_export.checkpoint import read_checkpoint

Weights = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def copy(tied: Path, tmp_path: Path) -> Path:
    return shutil.copytree(tied, tmp_path / "মডেল ১")


def alter_weights(folder: Path, change: Callable[[Weights], None]) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


def alter_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | values
    path.write_text(
        json.dumps({key: value for key, value in config.items() if value is not ...}), encoding="utf-8"
    )


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_weights_are_those_that_transformers_reads(kind: str, request: pytest.FixtureRequest) -> None:
    folder = request.getfixturevalue(kind)
    network = Qwen3ForCausalLM.from_pretrained(folder)
    checkpoint = read_checkpoint(folder)
    assert checkpoint.parameters == sum(parameter.numel() for parameter in network.parameters())
    for name, parameter in network.named_parameters():
        np.testing.assert_array_equal(checkpoint.weights[name], parameter.detach().numpy())


def drop(name: str) -> Callable[[Weights], None]:
    return lambda weights: weights.__delitem__(name)


def put(name: str, value: Any) -> Callable[[Weights], None]:
    return lambda weights: weights.update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop("model.layers.1.mlp.up_proj.weight"), "model.layers.1.mlp.up_proj.weight is missing"),
        (put("lm_head.weight", np.zeros((8, 8), np.float32)), "lm_head.weight is unknown"),
        (put("model.norm.weight", np.ones(63, np.float32)), r"model.norm.weight has shape \(63,\)"),
        (put("model.norm.weight", np.ones(64, np.float16)), "model.norm.weight is F16, float32 expected"),
        (put("model.norm.weight", np.full(64, np.nan, np.float32)), "model.norm.weight .*not finite"),
    ],
)
def test_a_wrong_tensor_is_named(copy: Path, change: Callable[[Weights], None], message: str) -> None:
    alter_weights(copy, change)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(copy)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope_type is 'yarn'"),
        ({"head_dim": ...}, "'head_dim' is missing"),
        ({"num_key_value_heads": 4}, "k_proj.weight has shape"),
    ],
)
def test_an_architecture_that_the_graph_does_not_compute_is_refused(
    copy: Path, values: dict[str, Any], message: str
) -> None:
    alter_config(copy, **values)
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(copy)


def test_a_missing_or_broken_file_is_named(copy: Path) -> None:
    (copy / "model.safetensors").write_bytes(b"half a file")
    with pytest.raises(CheckpointError, match=r"model\.safetensors: not readable"):
        read_checkpoint(copy)
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors: no such file"):
        read_checkpoint(copy)
    (copy / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: not JSON"):
        read_checkpoint(copy)
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        read_checkpoint(copy / "nowhere")
