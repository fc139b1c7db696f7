import shutil
from pathlib import Path

import onnx
import pytest
import torch
from optimum.onnxruntime import ORTModelForCausalLM
from transformers import Qwen3Config, Qwen3ForCausalLM

from mothertongue.tokenizer import Tokenizer
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_export.reference import reference_max_abs, write_reference

GREEDY_TOKENS = 24


@pytest.mark.parametrize("kind", ["tied", "untied"])
def test_the_fp32_graph_equals_pytorch_with_any_past_and_batch(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    folder = request.getfixturevalue(kind)
    model = PyTorchModel.open(folder)
    path = write_reference(read_checkpoint(folder), tmp_path)
    difference = reference_max_abs(model, path, read_checkpoint(folder).architecture)
    assert 0 < difference < 1e-4
    operators = {node.domain for node in onnx.load(path).graph.node}
    assert operators <= {"", "ai.onnx"}, "the reference is for anyone: standard operators only"


def test_another_model_is_not_equal(tied: Path, untied: Path, tmp_path: Path) -> None:
    path = write_reference(read_checkpoint(untied), tmp_path)
    assert reference_max_abs(PyTorchModel.open(tied), path, read_checkpoint(tied).architecture) > 0.1


def test_optimum_loads_the_reference_folder_and_writes_the_same_tokens(tied: Path, tmp_path: Path) -> None:
    """With width = heads * head width, as in every recipe: optimum-onnx 0.1 ignores head_dim for Qwen3."""
    tokenizer = Tokenizer.open(tied)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 600}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    torch.manual_seed(0)
    # Weights far apart, so that the most probable token changes from one position to the next.
    settings = Qwen3Config(**sizes, **heads, tie_word_embeddings=True, initializer_range=0.5)
    Qwen3ForCausalLM(settings).save_pretrained(tmp_path / "checkpoint")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(tied / name, tmp_path / "checkpoint" / name)
    folder = tmp_path / "মডেল ১"
    write_reference(read_checkpoint(tmp_path / "checkpoint"), folder)

    network = ORTModelForCausalLM.from_pretrained(folder, local_files_only=True)
    model, end = PyTorchModel.open(tmp_path / "checkpoint"), tokenizer.special("<|end|>")
    for prompt in ("The river is called", "নদী শব্দের ইংরেজি"):
        ids = [tokenizer.special("<|bos|>"), *tokenizer.encode(prompt)]
        written = network.generate(
            torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.int64),
            max_new_tokens=GREEDY_TOKENS, do_sample=False, eos_token_id=end, pad_token_id=end,
        )  # fmt: skip
        answer = written[0, len(ids) :].tolist()
        assert answer == model.greedy(ids, GREEDY_TOKENS, end)
        assert len(set(answer)) > 3, "a model that repeats one token proves little"
