"""What a recipe may not say although every value has the right type.

The limit of each number is a line of one table, `LIMITS`; what values say about each other is a function.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mothertongue_trainer.recipe import CorpusConfig, ModelConfig, Recipe

# The components that the dictionary source makes; `[corpus.mixture]` may weigh them.
DICTIONARY_COMPONENTS = (
    "prose", "english", "bangla", "definition", "sentence", "numbers", "sums", "everyday", "not_learned",
)  # fmt: skip

RESERVED_COMPONENTS = ("heldout", "core")  # files of their own in a prepared corpus
BLOCK_SIZES = (16, 32, 64, 128, 256)  # what the kernels of the bundle accept


@dataclass(frozen=True)
class Limit:
    """What some numbers of a recipe must be; their places are patterns, in which `*` stands for anything."""

    expected: str
    holds: Callable[[Any], bool]
    places: tuple[str, ...]


LIMITS = (
    Limit(
        "at least 1",
        lambda value: value >= 1,
        (
            "corpus.dictionary.core_words",
            "model.layers", "model.width", "model.heads", "model.kv_heads", "model.ffn_width",
            "model.context",
            "training.tokens", "training.sequence_tokens", "training.batch_sequences",
            "training.micro_batch_sequences", "training.checkpoint_every_steps", "training.keep_checkpoints",
            "training.audit_again_after_steps",
            "audit.sequences", "audit.directions", "audit.layers",
            "evaluation.documents", "evaluation.chat_questions",
        ),
    ),
    Limit(
        "0 or more",
        lambda value: 0 <= value < math.inf,
        (
            "corpus.dictionary.defined_words", "corpus.dictionary.sentence_words",
            "corpus.dictionary.unlearned_words", "training.warmup_steps",
            "optimizer.muon_weight_decay", "optimizer.adamw_weight_decay", "seed",
        ),
    ),
    Limit(
        "a positive number",
        lambda value: 0 < value < math.inf,
        (
            "model.rope_theta", "model.rms_norm_eps", "training.gradient_clip", "optimizer.adamw_eps",
            "optimizer.muon_learning_rate", "optimizer.adamw_learning_rate", "export.maximum_*",
            "tokenizer.minimum_characters_per_token.*",
        ),
    ),
    Limit("a positive share", lambda value: 0 < value < math.inf, ("corpus.mixture.*",)),
    Limit("between 0 and 50", lambda value: 0 < value < 50, ("corpus.heldout_percent",)),
    Limit("0 to 1", lambda value: 0 <= value <= 1, ("training.decay_fraction",)),
    Limit(
        "0 to less than 1",
        lambda value: 0 <= value < 1,
        ("optimizer.muon_momentum", "optimizer.adamw_betas.*"),
    ),
    # The CPU kernels of the device graph rotate 16 values at a time.
    Limit("a multiple of 16", lambda value: value > 0 and value % 16 == 0, ("model.head_width",)),
    # 256 bytes, the special tokens and some merges.
    Limit("at least 512", lambda value: value >= 512, ("tokenizer.vocabulary",)),
    # Token shards store 16 bits a token.
    Limit("at most 65536", lambda value: value <= 65_536, ("tokenizer.vocabulary",)),
    Limit(f"one of {BLOCK_SIZES}", lambda value: value in BLOCK_SIZES, ("export.block_size",)),
)  # fmt: skip


def contradictions(recipe: Recipe) -> list[str]:
    """Return a sentence for each value that has the right type and cannot work."""
    beyond = list(_values_beyond_limits(recipe))
    return [
        *beyond,
        *_name_problems(recipe.name),
        *_corpus_problems(recipe.corpus),
        *([] if beyond else (*_model_problems(recipe.model), *_training_problems(recipe))),
    ]


def values_by_place(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each plain value in nested dictionaries and lists, as `model.layers`, 4."""
    if isinstance(value, dict | list | tuple):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for key, entry in entries:
            yield from values_by_place(entry, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def _values_beyond_limits(recipe: Recipe) -> Iterator[str]:
    for place, value in values_by_place(recipe.as_dict()):
        for limit in LIMITS:
            limited = any(fnmatchcase(place, pattern) for pattern in limit.places)
            if limited and value is not None and not limit.holds(value):
                yield f"{place}: {value} found, {limit.expected} expected"


def _name_problems(name: str) -> list[str]:
    return [] if _is_file_name(name) else [f"name: {name!r} found, a plain folder name expected"]


def _is_file_name(name: str) -> bool:
    """Return whether every file system takes `name` for a file or folder."""
    return bool(name) and name.strip(". ") == name and not set(name) & set('/\\:*?"<>|\0')


def _corpus_problems(corpus: CorpusConfig) -> Iterator[str]:
    known = [files.name for files in corpus.files]
    for name in known:
        if not _is_file_name(name) or name in RESERVED_COMPONENTS:
            yield f"corpus.files: {name!r} cannot name a component, whose files are called so"
    if corpus.dictionary:
        known += DICTIONARY_COMPONENTS if corpus.dictionary.chat else ("prose",)
    if not known:
        yield "corpus: no text; add [corpus.dictionary] or [[corpus.files]]"
    for name in sorted({name for name in known if known.count(name) > 1}):
        yield f"corpus.files: the name {name!r} is used twice"
    for name in corpus.mixture:
        if name not in known:
            yield f"corpus.mixture.{name}: no such component; known are {', '.join(known)}"
    if not corpus.mixture:
        yield "corpus.mixture: empty; give at least one component a share"


def _model_problems(model: ModelConfig) -> Iterator[str]:
    if model.heads % model.kv_heads:
        yield f"model.kv_heads: {model.kv_heads} does not divide the {model.heads} heads"


def _training_problems(recipe: Recipe) -> Iterator[str]:
    training = recipe.training
    if recipe.steps < 1:
        yield f"training.tokens: {training.tokens} is less than one step of {recipe.step_tokens}"
    if training.sequence_tokens > recipe.model.context:
        yield (
            f"training.sequence_tokens: {training.sequence_tokens} is more than model.context, "
            f"{recipe.model.context}"
        )
    micro = training.micro_batch_sequences
    if micro is not None and training.batch_sequences % micro:
        yield f"training.micro_batch_sequences: {micro} does not divide batch_sequences"
    if len(recipe.optimizer.adamw_betas) != 2:
        yield "optimizer.adamw_betas: two numbers expected"
