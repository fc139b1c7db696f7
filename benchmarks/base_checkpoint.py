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
from tokenizers import models

from mothertongue.tokenizer import SPECIAL_TOKENS, byte_alphabet
from mothertongue_export.checkpoint import read_architecture
from mothertongue_trainer.document import Document
from mothertongue_trainer.model import huggingface_config
from mothertongue_trainer.recipe import ModelConfig, read_recipe
from mothertongue_trainer.vocabulary import byte_level_tokenizer, special_tokens, tokenizer_config

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
    write_tokenizer(checkpoint, recipe.tokenizer.vocabulary, recipe.model.context)
    write_config(checkpoint, recipe.model, recipe.tokenizer.vocabulary)
    write_weights(checkpoint)
    (checkpoint / "training_state.json").write_text('{"commit": "none: random weights"}', encoding="utf-8")
    write_text(run / "corpus")
    print(checkpoint)


def write_config(folder: Path, model: ModelConfig, vocabulary: int) -> None:
    """Write config.json and generation_config.json."""
    config = huggingface_config(model, vocabulary)
    generation = {name: config[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
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


def write_tokenizer(folder: Path, vocabulary: int, context: int) -> None:
    """Write the project's tokenizer with merges that are all pairs of bytes."""
    letters = list(byte_alphabet())
    pairs = [(one, two) for one in letters for two in letters]
    merges = pairs[: vocabulary - len(SPECIAL_TOKENS) - len(letters)]
    entries = [*SPECIAL_TOKENS, *letters, *(one + two for one, two in merges)]
    model = models.BPE({entry: number for number, entry in enumerate(entries)}, merges)
    tokenizer = byte_level_tokenizer(model)
    tokenizer.add_special_tokens(special_tokens())
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = tokenizer_config({}, context=context, turns=None)
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")


def write_text(folder: Path) -> None:
    """Write held-out documents of random words, which is all that `export_base.py` reads of a corpus."""
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
