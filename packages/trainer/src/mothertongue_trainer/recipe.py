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
from mothertongue_trainer.contradictions import contradictions
from mothertongue_trainer.settings import read_settings


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
    monitor: bool = True  # watch the training as it runs, for less than 1 % of its time


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """What is measured after training, on text the model never saw."""

    documents: int = 400  # held-out documents for each language
    chat_questions: int = 1000  # questions of each skill, through the int8 bundle


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """The bundle and the gates it must pass."""

    weights: Literal["int8", "int4", "fp32"] = "int8"
    block_size: int = 128  # weights that share one scale, at most: a matrix may need smaller blocks
    # Of int8 and fp32. What int4 may lose is in mothertongue_export.parity.
    maximum_bits_per_byte_increase_percent: float = 0.5
    maximum_clear_flips_percent: float = 0.1
    maximum_kl_mean: float = 0.005


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
        problems = contradictions(recipe)
    if problems:
        listed = "\n".join(f"  {problem}" for problem in problems)
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        raise RecipeError(f"{path}: {count}\n{listed}")
    return recipe
