"""Tiny Qwen3 checkpoints, made and trained with transformers: nothing of the subject has a hand in them."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import Qwen3Config, Qwen3ForCausalLM

from mothertongue_export import export
from mothertongue_export.checkpoint import read_checkpoint
from mothertongue_export.oracle import Oracle, open_oracle
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import silent
from mothertongue_trainer.recipe import ExportConfig
from mothertongue_trainer.vocabulary import SPLIT_PATTERN

SPECIAL_TOKENS = ["<|bos|>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|pad|>"]
CONTEXT = 64
WORDS = {
    "নদী": "river",
    "গাছ": "tree",
    "আকাশ": "sky",
    "বাড়ি": "house",
    "মাছ": "fish",
    "পাখি": "bird",
    "ফুল": "flower",
}
BANGLA = [f"{word} শব্দের ইংরেজি অর্থ {gloss}। আমি একটি {word} দেখেছি।" for word, gloss in WORDS.items()]
ENGLISH = [f"The {gloss} is called {word} in Bangla; I saw a {gloss} today." for word, gloss in WORDS.items()]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def heldout() -> list[Document]:
    texts = [("bn", text) for text in BANGLA] + [("en", text) for text in ENGLISH]
    return [
        Document(id=str(number), language=language, component="heldout", text=text)
        for number, (language, text) in enumerate(texts)
    ]


@pytest.fixture(scope="session")
def config() -> ExportConfig:
    return ExportConfig(block_size=32)


@pytest.fixture(scope="session")
def oracle(tied: Path, heldout: list[Document]) -> Iterator[Oracle]:
    with open_oracle(read_checkpoint(tied), heldout=heldout, conversations=[], progress=silent) as opened:
        yield opened


@pytest.fixture(scope="session")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained checkpoint whose head is its embedding, with an ffn width that 32 does not divide."""
    return make_checkpoint(tmp_path_factory.mktemp("tied") / "step-000100", tied=True)


@pytest.fixture(scope="session")
def untied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("untied") / "step-000100", tied=False)


def make_checkpoint(folder: Path, *, tied: bool) -> Path:
    folder.mkdir(parents=True)
    tokenizer = make_tokenizer(folder)
    torch.manual_seed(0)
    network = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=64,
            intermediate_size=144,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=CONTEXT,
            tie_word_embeddings=tied,
            rope_theta=10_000.0,
            rms_norm_eps=1e-6,
            attention_bias=False,
            bos_token_id=0,
            eos_token_id=4,
            attn_implementation="eager",
        )
    )
    train(network, tokenizer)
    network.save_pretrained(folder)
    return folder


def make_tokenizer(folder: Path) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(BANGLA + ENGLISH, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "chat_template": "<|bos|>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}",
        "bos_token": "<|bos|>",
        "eos_token": "<|end|>",
        "pad_token": "<|pad|>",
        "mothertongue": {"replacements": {}},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return tokenizer


def train(network: Qwen3ForCausalLM, tokenizer: Tokenizer) -> None:
    """Teach half of the texts: then probabilities are neither flat nor certain, and no norm is all ones."""
    texts = [[0, *tokenizer.encode(text).ids, 4] for text in BANGLA[::2] + ENGLISH[::2]]
    length = max(map(len, texts))
    ids = torch.tensor([text + [5] * (length - len(text)) for text in texts])
    labels = ids.masked_fill(ids == 5, -100)
    optimizer = torch.optim.AdamW(network.parameters(), lr=3e-3)
    for _ in range(60):
        network(ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.fixture(scope="session")
def bundle(
    tied: Path, heldout: list[Document], config: ExportConfig, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The bundle of the tied checkpoint; tests that change it work on a copy."""
    folder = tmp_path_factory.mktemp("bundles") / "tiny"
    export(tied, folder, config=config, heldout=heldout, sources=[{"name": "own words", "licence": "CC0"}])
    return folder


@pytest.fixture(scope="session")
def split_as_qwen(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tied checkpoint with the split pattern of `mothertongue tokenizer`, which llama.cpp has too."""
    folder = tmp_path_factory.mktemp("মডেল ১") / "step-000100"
    shutil.copytree(tied, folder)
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    split = {"type": "Split", "pattern": {"Regex": SPLIT_PATTERN}, "behavior": "Isolated", "invert": False}
    steps = [split, {**content["pre_tokenizer"], "use_regex": False}]
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(content), encoding="utf-8")
    return folder
