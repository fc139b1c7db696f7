"""The Hugging Face folder, judged by transformers as its users load it."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import CheckFailed, CheckpointError
from mothertongue.tokenizer import Tokenizer
from mothertongue_export import huggingface_folder
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.huggingface_folder import write_huggingface
from mothertongue_export.pytorch import PyTorchModel

TEXTS = (
    "নদী",
    "র\u200c্যাব ক্\u200dষ ১২৩ 45",
    " don't\n\n<|end|><|bos|>",
    "আমি একটি river দেখেছি।",
    "e\u0301 ড\u09bc",
)
TURNS = [("system", "বলো।"), ("user", "নদী?"), ("assistant", "river"), ("user", "গাছ?")]


@pytest.fixture(scope="module")
def folder(split_as_qwen: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("মডেল ১")
    write_huggingface(read_checkpoint(split_as_qwen), folder)
    return folder


@pytest.fixture(scope="module")
def theirs(folder: Path) -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def test_transformers_loads_it_and_computes_the_same_logits(folder: Path, split_as_qwen: Path) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True).eval()
    ids = [[0, 7, 250, 31, 99, 4]]
    with torch.inference_mode():
        found = network(torch.tensor(ids)).logits.numpy()
    assert np.abs(found - PyTorchModel.open(split_as_qwen).logits(ids)).max() < 1e-5
    assert (folder / "model.safetensors").read_bytes() == (split_as_qwen / "model.safetensors").read_bytes()


def test_text_is_the_same_ids_and_begins_once(theirs: PreTrainedTokenizerFast, split_as_qwen: Path) -> None:
    ours = Tokenizer.open(split_as_qwen)
    for text in TEXTS:
        assert theirs.encode(text, add_special_tokens=False, split_special_tokens=True) == ours.encode(text)
        assert theirs(text, split_special_tokens=True)["input_ids"] == [0, *ours.encode(text)]
    assert theirs.decode(ours.encode(TEXTS[1])) == TEXTS[1]
    assert [theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id] == [0, 4, 5]


def test_the_chat_template_renders_that_of_training_byte_for_byte(
    theirs: PreTrainedTokenizerFast, split_as_qwen: Path
) -> None:
    config = json.loads((split_as_qwen / "tokenizer_config.json").read_text(encoding="utf-8"))
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    turns = [{"role": role, "content": content} for role, content in TURNS]
    for ask in (True, False):
        expected = environment.from_string(config["chat_template"]).render(
            messages=turns, add_generation_prompt=ask
        )
        assert theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=ask) == expected
    ids = theirs.apply_chat_template(turns, add_generation_prompt=True)
    assert ids == ChatFormat.open(split_as_qwen).encode([Message(*turn) for turn in TURNS])
    assert ids.count(0) == 1


def test_what_the_tokenizer_gives_the_model_takes(
    folder: Path, theirs: PreTrainedTokenizerFast, split_as_qwen: Path
) -> None:
    network = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    inputs = theirs("The river is called", return_tensors="pt")
    assert set(inputs) == {"input_ids", "attention_mask"}
    answer = network.generate(**inputs, max_new_tokens=40, do_sample=False)[0].tolist()
    prompt = inputs["input_ids"][0].tolist()
    assert answer == [*prompt, *PyTorchModel.open(split_as_qwen).greedy(prompt, 40, 4)]


def test_a_folder_that_transformers_reads_otherwise_is_not_kept(
    split_as_qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = huggingface_folder.beginning_of_text
    monkeypatch.setattr(huggingface_folder, "beginning_of_text", lambda bos: right(bos + 1))
    with pytest.raises(CheckFailed, match="reads other tokens"):
        write_huggingface(read_checkpoint(split_as_qwen), tmp_path)


def test_a_checkpoint_of_links_as_a_cache_keeps_it_becomes_files(split_as_qwen: Path, tmp_path: Path) -> None:
    linked, folder = tmp_path / "linked", tmp_path / "folder"
    linked.mkdir()
    folder.mkdir()
    for path in split_as_qwen.iterdir():
        (linked / path.name).symlink_to(path)
    write_huggingface(read_checkpoint(linked), folder)
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_an_incomplete_checkpoint_is_refused(split_as_qwen: Path, tmp_path: Path) -> None:
    incomplete = shutil.copytree(split_as_qwen, tmp_path / "checkpoint")
    (incomplete / "generation_config.json").unlink()
    with pytest.raises(CheckpointError, match=r"generation_config\.json: no such file"):
        write_huggingface(read_checkpoint(incomplete), tmp_path)
