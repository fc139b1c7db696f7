import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from mothertongue_trainer.corpus import prepare_corpus
from mothertongue_trainer.recipe import (
    CorpusConfig,
    FilesConfig,
    ModelConfig,
    Recipe,
    TokenizerConfig,
    TrainingConfig,
)
from mothertongue_trainer.tokens import encode_corpus
from mothertongue_trainer.vocabulary import train_tokenizer

BANGLA_SYLLABLES = [c + v for c in "কখগচজটডতদনপবমরলশসহ" for v in ("", "া", "ি", "ু", "ে", "ো", "্র")]
ENGLISH_SYLLABLES = [c + v for c in "bcdfghklmnprstvw" for v in "aeiou"]


@dataclass(frozen=True)
class Run:
    """A recipe and the run folder that it filled."""

    recipe: Recipe
    folder: Path


def invented_texts(syllables: list[str], *, documents: int, seed: int) -> list[str]:
    """Return documents of 10 to 60 words of a language of 300, the n-th word 1/n as frequent as the first."""
    random = np.random.default_rng(seed)
    words = ["".join(random.choice(syllables, size=random.integers(1, 5))) for _ in range(300)]
    frequencies = 1 / np.arange(1, 301)
    frequencies /= frequencies.sum()
    lengths = random.integers(10, 60, size=documents)
    return [" ".join(random.choice(words, size=length, p=frequencies)) + "." for length in lengths]


def write_jsonl(path: Path, rows: list[object], opener: Callable[..., object] = open) -> None:
    with opener(path, "wt", encoding="utf-8") as file:  # type: ignore[attr-defined]
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def small_recipe(folder: Path) -> Recipe:
    """Return a recipe over three small components whose files lie in `folder`."""
    return Recipe(
        name="small",
        seed=3,
        corpus=CorpusConfig(
            mixture={"গদ্য": 0.5, "english": 0.3, "chat": 0.2},
            files=(
                FilesConfig(name="গদ্য", language="bn", paths=(str(folder / "গদ্য*.jsonl.xz"),)),
                FilesConfig(name="english", language="en", paths=(str(folder / "english.jsonl.gz"),)),
                FilesConfig(name="chat", language="bn", paths=(str(folder / "chat.jsonl"),)),
            ),
            heldout_percent=10,
        ),
        tokenizer=TokenizerConfig(vocabulary=600),
        model=ModelConfig(layers=2, width=32, heads=2, kv_heads=1, head_width=16, ffn_width=64, context=64),
        training=TrainingConfig(tokens=64 * 8 * 40, sequence_tokens=64, batch_sequences=8),
    )


def chat_rows() -> list[object]:
    """Return conversations with sums in Bangla digits, as a `.jsonl` source holds them."""
    digits = str.maketrans("0123456789", "০১২৩৪৫৬৭৮৯")
    return [
        {
            "messages": [
                {"role": "user", "content": f"{a} + {b} = কত?".translate(digits)},
                {"role": "assistant", "content": f"{a + b}".translate(digits)},
            ]
        }
        for a in range(12)
        for b in range(12)
    ]


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of source files whose path has a space and Bangla letters; read only."""
    folder = tmp_path_factory.mktemp("sources") / "আমার লেখা"
    folder.mkdir()
    bangla = [{"text": text} for text in invented_texts(BANGLA_SYLLABLES, documents=300, seed=1)]
    english = [{"text": text} for text in invented_texts(ENGLISH_SYLLABLES, documents=300, seed=2)]
    write_jsonl(folder / "গদ্য ১.jsonl.xz", list(bangla[:150]), lzma.open)
    write_jsonl(folder / "গদ্য ২.jsonl.xz", list(bangla[150:]), lzma.open)
    write_jsonl(folder / "english.jsonl.gz", list(english), gzip.open)
    write_jsonl(folder / "chat.jsonl", chat_rows())
    return folder


@pytest.fixture(scope="session")
def encoded_run(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with corpus, tokenizer and tokens; read only."""
    folder = tmp_path_factory.mktemp("runs") / "ছোট run"
    recipe = small_recipe(sources)
    prepare_corpus(recipe, folder)
    train_tokenizer(recipe, folder)
    encode_corpus(recipe, folder)
    return Run(recipe=recipe, folder=folder)
