"""Train a tokenizer: byte-level BPE on a sample mixed like the run, and the chat format that goes with it."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import DataError
from mothertongue.tokenizer import BOS, END, PAD, SPECIAL_TOKENS, Tokenizer
from mothertongue_trainer.corpus import read_manifest, replace_folder
from mothertongue_trainer.document import read_documents
from mothertongue_trainer.fairness import TokenizerReport, check_fairness, measure
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.writing import writing

# No merge crosses these pieces. They are those of Qwen 3.5's public tokenizer.json (`qwen35` in llama.cpp).
# - Letters stay with their marks. In Bangla every vowel sign and hasanta is a mark (\p{M}); a pattern with
#   \p{L}+ alone, as in GPT-2 and its heirs, cuts a word at each of them, and no merge can mend it.
# - Each digit is alone, so that sums stay learnable.
# A zero-width (non-)joiner in a word is neither letter nor mark: a piece starts with it, as with a space.
SPLIT_PATTERN = "|".join(
    (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)",  # English contractions
        r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+",  # a word, with the space or sign before it
        r"\p{N}",  # a digit
        r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*",  # signs
        r"\s*[\r\n]+",  # line ends
        r"\s+(?!\S)",  # white space, but for the space that belongs to the next word
        r"\s+",
    )
)

# Enough text for each entry of the vocabulary; more changes the merges little and takes longer.
SAMPLE_CHARACTERS_PER_ENTRY = 2_000

CHAT_TEMPLATE = (
    "{{ '<|bos|>' }}"
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

# People type what their keyboard or word processor gives them; the model learns one form of each. Spaces go
# around a quotation mark: the split pattern would join it to the word, and a quoted word would be a new one.
# A single one stays where it is, since it may be an apostrophe.
QUOTATION_MARKS = {**dict.fromkeys('"“”„‟«»', ' " '), **dict.fromkeys("‘’‚‛", "'")}


def train_tokenizer(recipe: Recipe, run_folder: Path, *, progress: Progress = silent) -> TokenizerReport:
    """Write `run_folder`/tokenizer from the prepared corpus, whole or not at all, and return how fair it is.

    The folder holds tokenizer.json, tokenizer_config.json (chat template, replacements) and report.json.

    Raises:
        DataError: no prepared corpus, or too little text for so many entries.
        CheckFailed: a language misses `minimum_characters_per_token`.
    """
    temporary = run_folder / "tokenizer.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    progress("sampling text", 0, None)
    sample = sample_passages(recipe, run_folder)
    replacements = {**QUOTATION_MARKS, **native_digits(sample, main_language(recipe, run_folder))}
    progress("learning merges", 0, None)
    tokenizer = train_bpe(sample, replacements, vocabulary=recipe.tokenizer.vocabulary)
    path = temporary / "tokenizer.json"
    with writing(path):
        tokenizer.save(str(path))
    files = read_manifest(run_folder / "corpus").files
    turns = max(files[f"{name}.jsonl"].turns for name in recipe.corpus.mixture)
    config = tokenizer_config(replacements, context=recipe.model.context, turns=turns or None)
    _write_json(temporary / "tokenizer_config.json", config)
    progress("measuring fairness", 0, None)
    report = measure(Tokenizer(tokenizer), read_documents(run_folder / "corpus" / "heldout.jsonl"))
    _write_json(temporary / "report.json", report.as_dict())
    check_fairness(report, recipe.tokenizer)
    replace_folder(temporary, run_folder / "tokenizer")
    return report


@dataclass(frozen=True)
class Passage:
    """A piece of training text: a document of prose, or what one message says."""

    text: str
    language: str
    role: str | None  # who says it; None in prose


def sample_passages(recipe: Recipe, run_folder: Path) -> list[Passage]:
    """Return training text mixed like the run, `SAMPLE_CHARACTERS_PER_ENTRY` for each entry.

    Nothing is repeated, though training repeats: a phrase that stands in every conversation says nothing new
    about words. A component too short for its share is taken whole, and the others fill its place.
    """
    corpus = run_folder / "corpus"
    paths = {name: corpus / f"{name}.jsonl" for name in recipe.corpus.mixture}
    available = {name: sum(len(p.text) for p in _distinct(path)) for name, path in paths.items()}
    wanted = SAMPLE_CHARACTERS_PER_ENTRY * recipe.tokenizer.vocabulary
    rates = sampling_rates(recipe.corpus.mixture, available, wanted)
    return [p for name, path in paths.items() for p in _distinct(path) if _hash_share(p.text) < rates[name]]


def sampling_rates(shares: dict[str, float], available: dict[str, int], wanted: int) -> dict[str, float]:
    """Return which part of each component to take, so that `wanted` characters are shared out by `shares`."""
    rates = dict.fromkeys(shares, 1.0)
    filling = dict(shares)  # the components that have more than their part
    while filling:
        taken_whole = sum(available[name] for name in shares if name not in filling)
        level = (wanted - taken_whole) / sum(filling.values())
        short = [name for name, share in filling.items() if available[name] <= share * level]
        if not short:
            return rates | {name: share * level / available[name] for name, share in filling.items()}
        for name in short:
            del filling[name]
    return rates


def _distinct(path: Path) -> Iterator[Passage]:
    """Yield the prose of a prepared file, and each different message of its conversations once."""
    said: set[str] = set()
    for document in read_documents(path):
        if document.text:
            yield Passage(document.text, document.language, None)
        for message in document.messages:
            if message.content not in said:
                said.add(message.content)
                yield Passage(message.content, document.language, message.role)


def _hash_share(text: str) -> float:
    """Return a number in [0, 1) that depends on `text` alone: a sample by it needs no order and no seed."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[-8:], "big") / 2**64


def main_language(recipe: Recipe, run_folder: Path) -> str:
    """Return the language with the largest share of the training characters."""
    files = read_manifest(run_folder / "corpus").files
    shares: defaultdict[str, float] = defaultdict(float)
    for name, share in recipe.corpus.mixture.items():
        count = files[f"{name}.jsonl"]
        for language, characters in count.languages.items():
            shares[language] += share * characters / count.characters
    return max(shares, key=lambda language: shares[language])


def native_digits(passages: Sequence[Passage], language: str) -> dict[str, str]:
    """Return the replacements of 0 to 9 by the digits that `passages` in `language` prefer.

    Empty where that is 0 to 9 itself. A model that learned sums in ৭ and ৫ then understands 7 and 5.
    """
    digits = Counter[str]()  # the zero of each script -> digits seen
    for passage in passages:
        if passage.language == language:
            digits.update(chr(ord(sign) - int(sign)) for sign in passage.text if sign.isdecimal())
    zero = digits.most_common(1)[0][0] if digits else "0"
    return {} if zero == "0" else {str(value): chr(ord(zero) + value) for value in range(10)}


def train_bpe(
    passages: Sequence[Passage], replacements: dict[str, str], *, vocabulary: int
) -> tokenizers.Tokenizer:
    """Return a byte-level BPE tokenizer of exactly `vocabulary` entries; equal passages give equal ones.

    Raises:
        DataError: the text has fewer different pieces than that.
    """
    tokenizer = byte_level_tokenizer(models.BPE())
    specials = special_tokens()
    tokenizer.add_special_tokens(specials)
    chat = ChatFormat(Tokenizer(tokenizer), CHAT_TEMPLATE, replacements)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Every text as it will be encoded.
    texts = (chat.spelling(Message(p.role, p.text)) if p.role else p.text for p in passages)
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: the text fills {tokenizer.get_vocab_size()} of {vocabulary} entries; "
            "add text to the corpus or ask for fewer"
        )
    return tokenizer


def byte_level_tokenizer(model: models.BPE) -> tokenizers.Tokenizer:
    """Return a tokenizer that brings text into NFC, cuts it by the split pattern and gives `model` bytes."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def special_tokens() -> list[AddedToken]:
    """Return the special tokens in the order of their ids."""
    return [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]


def tokenizer_config(replacements: dict[str, str], *, context: int, turns: int | None) -> dict[str, Any]:
    """Return what tokenizer_config.json holds: the keys that transformers reads, and ours.

    `turns` is how many questions the longest conversation has that the model learns from; more at once it
    has never seen.
    """
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": END,
        "pad_token": PAD,
        "model_max_length": context,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
        "mothertongue": {"replacements": replacements, "turns": turns},
    }


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
