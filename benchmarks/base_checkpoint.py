"""Make a checkpoint of the base recipe's size with random weights, inside a run folder: for measuring speed.

    python benchmarks/base_checkpoint.py FOLDER

Its tokenizer has the base vocabulary, all pairs of bytes: valid, and as slow and large as a trained one. Its
held-out text is random words in Bangla and Latin letters.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from mothertongue.tokenizer import SPECIAL_TOKENS, byte_alphabet
from mothertongue_export.checkpoint import read_architecture
from mothertongue_trainer.document import Document
from mothertongue_trainer.recipe import ModelConfig, read_recipe

RECIPE = Path(__file__).parents[1] / "recipes" / "base.toml"
SEED = 0
DEVIATION = 0.02  # of the weights, as transformers initialises them
DOCUMENTS, WORDS = 24, 120  # of each language, of each document
ALPHABETS = {"bn": "অআইউকখগঘচছজঝটডতদনপফবভমযরলশসহািুেো", "en": "abcdefghijklmnopqrstuvwxyz"}


def main() -> None:
    """Write the run folder that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    run = parser.parse_args().folder
    recipe = read_recipe(RECIPE)
    checkpoint = run / "checkpoints" / "step-000001"
    checkpoint.mkdir(parents=True)
    write_tokenizer(checkpoint, recipe.tokenizer.vocabulary)
    write_config(checkpoint, recipe.model, recipe.tokenizer.vocabulary)
    write_weights(checkpoint)
    (checkpoint / "training_state.json").write_text('{"commit": "none: random weights"}', encoding="utf-8")
    write_text(run / "corpus")
    print(checkpoint)


def write_config(folder: Path, model: ModelConfig, vocabulary: int) -> None:
    """Write config.json and generation_config.json."""
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": model.layers,
        "hidden_size": model.width,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "head_dim": model.head_width,
        "intermediate_size": model.ffn_width,
        "vocab_size": vocabulary,
        "max_position_embeddings": model.context,
        "tie_word_embeddings": model.tied_embeddings,
        "rope_theta": model.rope_theta,
        "rms_norm_eps": model.rms_norm_eps,
        "hidden_act": "silu",
        "attention_bias": False,
        "bos_token_id": 0,
        "eos_token_id": 4,
    }
    generation = {"bos_token_id": 0, "eos_token_id": 4, "pad_token_id": 5, "do_sample": False}
    for name, content in {"config.json": config, "generation_config.json": generation}.items():
        (folder / name).write_text(json.dumps(content, indent=2), encoding="utf-8")


def write_weights(folder: Path) -> None:
    """Write normal weights, and norms of one, for the config.json in `folder`."""
    generator = np.random.default_rng(SEED)
    weights = {}
    for name, shape in read_architecture(folder / "config.json").shapes().items():
        if len(shape) == 1:
            weights[name] = np.ones(shape, np.float32)
        else:
            weights[name] = generator.standard_normal(shape, np.float32) * np.float32(DEVIATION)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a byte-level BPE tokenizer whose merges are pairs of bytes."""
    letters = list(byte_alphabet())
    pairs = [(one, two) for one in letters for two in letters]
    merges = pairs[: vocabulary - len(SPECIAL_TOKENS) - len(letters)]
    entries = [*SPECIAL_TOKENS, *letters, *(one + two for one, two in merges)]
    tokenizer = Tokenizer(models.BPE({entry: number for number, entry in enumerate(entries)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "chat_template": "<|bos|>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
        "{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "mothertongue": {"replacements": {}},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_text(folder: Path) -> None:
    """Write held-out documents of random words, and the manifest of a corpus of them."""
    folder.mkdir()
    generator = np.random.default_rng(SEED)
    lines = []
    for language, alphabet in ALPHABETS.items():
        for number in range(DOCUMENTS):
            lengths = generator.integers(2, 9, size=WORDS)
            text = " ".join("".join(generator.choice(list(alphabet), size=length)) for length in lengths)
            lines.append(Document(id=f"{language}-{number}", language=language, component="", text=text))
    text = "".join(line.to_json() + "\n" for line in lines)
    (folder / "heldout.jsonl").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
