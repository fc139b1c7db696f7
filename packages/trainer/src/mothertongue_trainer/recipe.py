"""A recipe: one TOML file that describes one run, from text to bundle.

`read_recipe` reports every problem of a file at once, before anything is computed. Numbers carry their unit
in their name; a default is written once, here.
"""

from __future__ import annotations

import dataclasses
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mothertongue.errors import RecipeError
from mothertongue_trainer.settings import read_settings

# The components that the dictionary source makes; `[corpus.mixture]` may weigh them.
DICTIONARY_COMPONENTS = (
    "prose", "english", "bangla", "definition", "sentence", "numbers", "sums", "everyday", "not_learned",
)  # fmt: skip

RESERVED_COMPONENTS = ("heldout", "core")  # files of their own in a prepared corpus


@dataclass(frozen=True, kw_only=True)
class DictionaryConfig:
    """The dictionary of a published Python package, as prose and as chat turns."""

    package: str = "shobdo==0.2.2"
    sha256: str = "340a6395278a313f947b1281c111cff755ef7af96a29092a67d508ec669d8d33"  # of its wheel
    core_words: int = 4000  # words whose English the model learns, both ways
    defined_words: int = 1500  # of these, words whose definition it learns
    sentence_words: int = 1500  # of these, words it can use in a sentence
    unlearned_words: int = 20000  # words it learns to say that it has not learned
    chat: bool = True  # false: prose only


@dataclass(frozen=True, kw_only=True)
class FilesConfig:
    """Your own text: .txt (one document a file) or .jsonl (one `{"text": ...}` a line), also .gz or .xz."""

    name: str  # the component's name in `[corpus.mixture]`
    language: str  # ISO 639-1, for the report of each language
    paths: tuple[str, ...]  # files or glob patterns, relative to the working folder


@dataclass(frozen=True, kw_only=True)
class CorpusConfig:
    """Where text comes from, how it is mixed and what is held out."""

    mixture: dict[str, float]  # component -> share of the training characters; any positive numbers
    dictionary: DictionaryConfig | None = None
    files: tuple[FilesConfig, ...] = ()
    heldout_percent: float = 2.0  # of the documents (of the headwords, in a dictionary), by hash


@dataclass(frozen=True, kw_only=True)
class TokenizerConfig:
    """Byte-level BPE, and the fairness that it must reach."""

    vocabulary: int
    minimum_characters_per_token: dict[str, float] = field(default_factory=dict)  # language -> gate, held out


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the Qwen3 family (RMSNorm, half-split RoPE, per-head QK-norm, GQA, SwiGLU)."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    head_width: int
    ffn_width: int
    context: int  # tokens, at inference
    tied_embeddings: bool = True
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-6


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """How much is learned, and in which steps. The number of tokens is fixed, so a run can be repeated."""

    tokens: int  # all training tokens, padding included
    sequence_tokens: int
    batch_sequences: int  # sequences in one optimizer step
    micro_batch_sequences: int | None = None  # sequences in one forward; default: the whole batch
    warmup_steps: int = 30
    decay_fraction: float = 1.0  # share of the run in which the learning rate falls linearly to 0 (WSD)
    gradient_clip: float | None = 1.0  # global norm
    compute_dtype: Literal["bfloat16", "float32"] = "bfloat16"  # weights and optimizer stay float32
    checkpoint_every_steps: int = 500
    keep_checkpoints: int = 2
    audit_again_after_steps: int = 50


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Muon for the 2-D matrices of the blocks, AdamW for embeddings, head and norms."""

    muon_learning_rate: float = 0.02
    muon_momentum: float = 0.95  # Nesterov
    muon_weight_decay: float = 0.0
    adamw_learning_rate: float = 4e-3
    adamw_betas: tuple[float, ...] = (0.9, 0.98)
    adamw_eps: float = 1e-10
    adamw_weight_decay: float = 0.0  # never on norms and embeddings


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """How the arbiter questions the run before its first step."""

    sequences: int = 4  # of the run's own first batch, in float64
    directions: int = 2  # random directions for each gradient value
    layers: int | None = None  # audit a model of this depth instead (base: a laptop can certify the recipe)


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured after training, on text the model never saw."""

    documents: int = 400  # held-out documents for each language
    chat_questions: int = 1000  # questions of each skill, through the int8 bundle


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The int8 bundle and the gates it must pass."""

    block_size: int = 128  # weights that share one scale
    maximum_bits_per_byte_increase_percent: float = 0.5
    maximum_clear_flips_percent: float = 0.5
    maximum_kl_mean: float = 0.01


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run. `runs/NAME/` and `bundles/NAME/` belong to it."""

    name: str
    corpus: CorpusConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    training: TrainingConfig
    seed: int = 0
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    export: ExportConfig = field(default_factory=ExportConfig)

    @property
    def run_folder(self) -> Path:
        return Path("runs") / self.name

    @property
    def bundle_folder(self) -> Path:
        return Path("bundles") / self.name

    @property
    def step_tokens(self) -> int:
        return self.training.sequence_tokens * self.training.batch_sequences

    @property
    def steps(self) -> int:
        return self.training.tokens // self.step_tokens

    def as_dict(self) -> dict[str, Any]:
        """Return the recipe as plain JSON values, defaults included: what fingerprints and bundles record."""
        return dataclasses.asdict(self)


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in the TOML file `path`.

    Raises:
        RecipeError: the file cannot be read, or has problems; the message lists all of them.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"{path}: no such recipe; recipes/nano.toml is one to start from") from None
    except IsADirectoryError:
        raise RecipeError(f"{path}: is a folder, a recipe is one .toml file") from None
    except UnicodeDecodeError as error:
        raise RecipeError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path}: not TOML: {error}") from None
    problems: list[str] = []
    recipe = read_settings(Recipe, values, place="", problems=problems)
    if not problems:
        problems = _contradictions(recipe)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RecipeError(f"{path}: {count}\n{listed}")
    return recipe


def _contradictions(recipe: Recipe) -> list[str]:
    """Return a sentence for each value that has the right type and cannot work."""
    return [
        *_name_problems(recipe.name),
        *_corpus_problems(recipe.corpus),
        *_tokenizer_problems(recipe.tokenizer),
        *_model_problems(recipe.model),
        *_training_problems(recipe),
    ]


def _name_problems(name: str) -> list[str]:
    return [] if _is_file_name(name) else [f"name: {name!r} found, a plain folder name expected"]


def _is_file_name(name: str) -> bool:
    """Return whether every file system takes `name` for a file or folder."""
    return bool(name) and name.strip(". ") == name and not set(name) & set('/\\:*?"<>|\0')


def _corpus_problems(corpus: CorpusConfig) -> list[str]:
    known = [files.name for files in corpus.files]
    problems = [
        f"corpus.files: {name!r} cannot name a component, whose files are called so"
        for name in known
        if not _is_file_name(name) or name in RESERVED_COMPONENTS
    ]
    if corpus.dictionary:
        known += DICTIONARY_COMPONENTS if corpus.dictionary.chat else ("prose",)
    if not known:
        problems.append("corpus: no text; add [corpus.dictionary] or [[corpus.files]]")
    for name in sorted({name for name in known if known.count(name) > 1}):
        problems.append(f"corpus.files: the name {name!r} is used twice")
    for name, share in corpus.mixture.items():
        if name not in known:
            problems.append(f"corpus.mixture.{name}: no such component; known are {', '.join(known)}")
        if not share > 0 or share == float("inf"):
            problems.append(f"corpus.mixture.{name}: {share} found, a positive share expected")
    if not corpus.mixture:
        problems.append("corpus.mixture: empty; give at least one component a share")
    if not 0 < corpus.heldout_percent < 50:
        problems.append(f"corpus.heldout_percent: {corpus.heldout_percent} found, between 0 and 50 expected")
    return problems


def _model_problems(model: ModelConfig) -> list[str]:
    problems = [
        f"model.{name}: {value} found, at least 1 expected"
        for name, value in dataclasses.asdict(model).items()
        if not isinstance(value, bool) and not value > 0
    ]
    if not problems and model.heads % model.kv_heads:
        problems.append(f"model.kv_heads: {model.kv_heads} does not divide the {model.heads} heads")
    if model.head_width % 16:  # the CPU kernels of the device graph rotate 16 values at a time
        problems.append(f"model.head_width: {model.head_width} found, a multiple of 16 expected")
    return problems


def _training_problems(recipe: Recipe) -> list[str]:
    training = recipe.training
    sizes = ("tokens", "sequence_tokens", "batch_sequences", "checkpoint_every_steps", "keep_checkpoints")
    problems = [
        f"training.{name}: {getattr(training, name)} found, at least 1 expected"
        for name in sizes
        if getattr(training, name) < 1
    ]
    if problems:
        return problems
    if recipe.steps < 1:
        problems.append(f"training.tokens: {training.tokens} is less than one step of {recipe.step_tokens}")
    if training.sequence_tokens > recipe.model.context:
        problems.append(
            f"training.sequence_tokens: {training.sequence_tokens} is more than model.context, "
            f"{recipe.model.context}"
        )
    micro = training.micro_batch_sequences
    if micro is not None and (micro < 1 or training.batch_sequences % micro):
        problems.append(f"training.micro_batch_sequences: {micro} does not divide batch_sequences")
    if not 0 <= training.decay_fraction <= 1:
        problems.append(f"training.decay_fraction: {training.decay_fraction} found, 0 to 1 expected")
    if len(recipe.optimizer.adamw_betas) != 2:
        problems.append("optimizer.adamw_betas: two numbers expected")
    return problems


def _tokenizer_problems(tokenizer: TokenizerConfig) -> list[str]:
    if tokenizer.vocabulary < 512:  # 256 bytes, the special tokens and some merges
        return [f"tokenizer.vocabulary: {tokenizer.vocabulary} found, at least 512 expected"]
    if tokenizer.vocabulary > 65_536:  # token shards store 16 bits a token
        return [f"tokenizer.vocabulary: {tokenizer.vocabulary} found, at most 65536 expected"]
    return []
