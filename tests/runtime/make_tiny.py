"""Make the bundle that the tests of the runtime use, and what transformers says of it.

    .venv/bin/python tests/runtime/make_tiny.py

The tests run where neither torch nor the export is installed, so both results are committed: `tiny/` with
random weights in 8 bits, and `oracle.npz`, the logits of transformers for the weights as 8 bits can say them.
"""

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from mothertongue.bundle import write_manifest
from mothertongue.session import Session
from mothertongue_export.checkpoint import Checkpoint, read_architecture
from mothertongue_export.golden import write_golden
from mothertongue_export.graph import write_device_graph

HERE = Path(__file__).parent
SPECIAL_TOKENS = ["<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>"]
VOCABULARY, CONTEXT, BLOCK_SIZE = 384, 64, 32
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
    "intermediate_size": 64,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": CONTEXT,
    "tie_word_embeddings": True,
    "rope_theta": 10000.0,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
}
ORACLE_IDS = np.random.default_rng(1).integers(6, VOCABULARY, size=24)


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
    (folder / "tokenizer.json").write_text(tokenizer.to_str() + "\n", encoding="utf-8")
    config = {"chat_template": TEMPLATE, "mothertongue": {"replacements": REPLACEMENTS}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")


def random_weights(folder: Path) -> Checkpoint:
    (folder / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    architecture = read_architecture(folder / "config.json")
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in architecture.shapes().items():
        # Wider than a trained model's, so that greedy choices are no near-ties.
        scale, centre = (0.2, 1.0) if "norm" in name else (0.6 if "embed" in name else 0.3, 0.0)
        weights[name] = (centre + scale * rng.standard_normal(shape)).astype(np.float32)
    return Checkpoint(folder=folder, architecture=architecture, weights=weights)


def dequantized(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return the weight as 8 bits in blocks along its rows can say it, from the definition."""
    result = np.empty_like(weight)
    for start in range(0, weight.shape[1], BLOCK_SIZE):
        block = weight[:, start : start + BLOCK_SIZE]
        scale = np.abs(block).max(axis=1, keepdims=True) / 127
        result[:, start : start + BLOCK_SIZE] = np.round(block / scale) * scale
    return result


def oracle(checkpoint: Checkpoint) -> npt.NDArray[np.float32]:
    """Return the logits (T, V) of transformers after each of ORACLE_IDS, computed without a cache."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    model = Qwen3ForCausalLM(Qwen3Config(**CONFIG)).eval()
    weights = {
        name: dequantized(weight) if weight.ndim == 2 else weight
        for name, weight in checkpoint.weights.items()
    }
    state = {name: torch.from_numpy(weight) for name, weight in weights.items()}
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    model.load_state_dict(state, strict=True)
    with torch.no_grad():
        logits = model(torch.from_numpy(ORACLE_IDS)[None], use_cache=False).logits[0]
    return np.asarray(logits.numpy(), np.float32)


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        checkpoint = random_weights(folder)
        write_tokenizer(folder)
        write_device_graph(checkpoint, folder, block_size=BLOCK_SIZE)
        prompts = np.random.default_rng(2).integers(6, VOCABULARY, size=(4, 8)).tolist()
        write_golden(folder, Session.open(folder, threads=1), prompts)
        (folder / "parity.json").write_text(json.dumps({"verdict": "PASS"}), encoding="utf-8")
        write_manifest(
            folder,
            minimum_onnxruntime="1.23",
            training_commit="0" * 40,
            recipe={"name": "tiny"},
            quantization=[{"weights": "all matrices", "bits": 8, "block_size": BLOCK_SIZE}],
            parity={"verdict": "PASS"},
        )
        shutil.rmtree(HERE / "tiny", ignore_errors=True)
        shutil.copytree(folder, HERE / "tiny")
        np.savez_compressed(HERE / "oracle.npz", ids=ORACLE_IDS, logits=oracle(checkpoint))


if __name__ == "__main__":
    main()
