"""A tiny bundle with random weights and a tokenizer trained here, made once for all tests of the runtime."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

import mothertongue
from mothertongue.bundle import write_manifest
from mothertongue.chat import ChatFormat
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.graph import write_device_graph

SPECIAL_TOKENS = ["<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>"]
VOCABULARY = 600
CONTEXT = 64
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{{ eos_token }}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
REPLACEMENTS = {"“": '"', "”": '"', "‘": "'", "’": "'"} | dict(zip("0123456789", "০১২৩৪৫৬৭৮৯", strict=True))
TEXT = [
    "নদী শব্দের অর্থ কী? নদী মানে জলের ধারা।",
    "বাংলা ভাষায় লেখা একটি ছোট বাক্য, ১২৩ সহ।",
    "The river flows to the sea; a small sentence in English.",
    "আমি ভাত খাই। তুমি কেমন আছ? ধন্যবাদ।",
]
CONFIG = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    letters = pre_tokenizers.Split(Regex(r"\p{N}| ?[\p{L}\p{M}]+|[^\p{L}\p{M}\p{N}]"), "isolated")
    bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([letters, bytes_only])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "mothertongue": {"replacements": REPLACEMENTS}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")


def write_checkpoint(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    shapes = read_architecture_shapes(folder)
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in shapes.items():
        # Wider than a trained model's, so that greedy choices are no near-ties.
        scale, centre = (0.2, 1.0) if "norm" in name else (0.3, 0.0)
        weights[name] = (centre + scale * rng.standard_normal(shape)).astype(np.float32)
    save_file(weights, folder / "model.safetensors")


def read_architecture_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    from mothertongue_export.checkpoint import read_architecture

    return read_architecture(folder / "config.json").shapes()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with random weights, and the tokenizer."""
    folder = tmp_path_factory.mktemp("checkpoint")
    write_checkpoint(folder)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="session")
def bundle(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of that checkpoint; a test that alters one copies it first (`copied`)."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    folder.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(checkpoint / name, folder)
    write_device_graph(read_checkpoint(checkpoint), folder)
    (folder / "parity.json").write_text(json.dumps({"verdict": "PASS", "kl_mean": 0.0001}), encoding="utf-8")
    write_manifest(
        folder,
        minimum_onnxruntime="1.23",
        training_commit="0" * 40,
        recipe={"name": "tiny"},
        quantization=[{"weights": "all matrices", "bits": 8, "block_size": 128}],
        parity={"verdict": "PASS"},
    )
    return folder


@pytest.fixture
def copied(bundle: Path, tmp_path: Path) -> Path:
    """A copy of the bundle that the test may break, in a folder with a space and Bangla letters."""
    return Path(shutil.copytree(bundle, tmp_path / "মডেল ১"))


@pytest.fixture(scope="session")
def chat_format(checkpoint: Path) -> ChatFormat:
    return ChatFormat.open(checkpoint)


@pytest.fixture
def model(bundle: Path) -> mothertongue.Model:
    return mothertongue.load(bundle, threads=1)
