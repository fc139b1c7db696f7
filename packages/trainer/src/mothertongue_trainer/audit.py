"""A recipe as the arbiter sees it: the run's own model, rows, optimizer and step, and what it declares.

The loss is written out here once more, over all logits, so that the arbiter can see which position learns
which label and compare it with the tokens. That training really descends this loss is one of the checks: the
gradients that `step.take_step` hands to the optimizer must be those of this loss.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.certificate import Certificate
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.torch.run.scope import scope_of
from mothertongue_trainer.arithmetic import choose_arithmetic
from mothertongue_trainer.checkpoint import FREE_FIELDS, deciding_settings, moments_of, restore
from mothertongue_trainer.heldout_rows import HeldOutRows, heldout_path
from mothertongue_trainer.model import IGNORED, Qwen3, huggingface_config
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer
from mothertongue_trainer.recipe import Recipe, read_recipe
from mothertongue_trainer.rows import Batch, Rows
from mothertongue_trainer.step import RowSource, TensorBatch, take_step

BOS, END, FIRST_WORD = 0, 4, 6  # token ids, the same in every Mothertongue tokenizer
EMBEDDING_IS_HEAD = ("model.embed_tokens.weight", "head_weight")  # attributes of the model
SYNTHETIC_DOCUMENT_TOKENS = 24  # on average
SYNTHETIC_NOTE = "the rows are random documents, since no tokens have been prepared"
# The start of each row: float64 logits of a large vocabulary are the costly part of an audit.
AUDITED_TOKENS = 256
FREE_OF_A_CERTIFICATE = tuple(field for field in FREE_FIELDS if field != "audit")


class RecipeRun:
    """The training run of a recipe, with the first `recipe.audit.sequences` rows of each step."""

    def __init__(self, recipe: Recipe, rows: RowSource, model: Qwen3, optimizer: MuonAdamW) -> None:
        self.recipe = recipe
        self.rows = rows
        self.model = model
        self.optimizer = optimizer
        training = recipe.training
        kept = min(recipe.audit.sequences, training.batch_sequences)
        micro = training.micro_batch_sequences or training.batch_sequences
        # As many micro-batches as the real step has, as far as the rows go.
        part = max(1, kept * micro // training.batch_sequences)
        self.training = dataclasses.replace(training, batch_sequences=kept, micro_batch_sequences=part)

    @property
    def declared(self) -> Declared:
        rows, part = self.training.batch_sequences, self.training.micro_batch_sequences or 1
        return Declared(
            vocabulary=self.model.vocabulary,
            isolated_documents=True,
            positions="relative",
            architecture=huggingface_config(self.model.config, self.model.vocabulary),
            tied=(EMBEDDING_IS_HEAD,) if self.model.config.tied_embeddings else (),
            supervised="some",
            must_learn=(END,),
            accumulation=math.ceil(rows / part),
            no_weight_decay=("*norm.weight", "*embed_tokens.weight"),
            warmup_steps=self.training.warmup_steps,
            optimizer=declared_optimizer(self.recipe),
            dtypes={"*": "float32"},  # whatever `compute_dtype` is
        )

    @property
    def options(self) -> Options:
        return Options(random_directions=self.recipe.audit.directions, seed=self.recipe.seed)

    @property
    def notes(self) -> tuple[str, ...]:
        whole = self.recipe.training
        rows, tokens = self.training.batch_sequences, min(whole.sequence_tokens, AUDITED_TOKENS)
        is_whole = (rows, tokens) == (whole.batch_sequences, whole.sequence_tokens)
        part = f"a step has {rows} x {tokens} tokens here and {whole.batch_sequences} x "
        synthetic = (SYNTHETIC_NOTE,) if isinstance(self.rows, SyntheticRows) else ()
        return synthetic if is_whole else (*synthetic, f"{part}{whole.sequence_tokens} in the training")

    @property
    def scope(self) -> dict[str, str]:
        """What a certificate depends on beside code and shapes: each table of the recipe, tokenizer, data."""
        tables = deciding_settings(self.recipe, free=FREE_OF_A_CERTIFICATE)
        recipe = {f"recipe: {name}": json.dumps(values, sort_keys=True) for name, values in tables.items()}
        return {**recipe, **getattr(self.rows, "identity", {})}

    def batch(self, step: int) -> TensorBatch:
        return self._tensors(self.rows.batch(step))

    def _tensors(self, rows: Batch) -> TensorBatch:
        batch = TensorBatch.of(rows, self.model.head_weight.device)
        return TensorBatch._make(part[: self.training.batch_sequences, :AUDITED_TOKENS] for part in batch)

    def micro_batches(self, step: int, rank: int) -> list[TensorBatch]:
        return list(self.batch(step).split(self.training.micro_batch_sequences or 1))

    @cached_property
    def eval_batches(self) -> Callable[[int], TensorBatch] | None:
        """Return what gives batch i of the held-out text; None where there is none."""
        if not isinstance(self.rows, Rows) or not heldout_path(self.rows.run_folder).is_file():
            return None
        heldout = HeldOutRows.open(self.recipe, self.rows.run_folder)
        return lambda number: self._tensors(heldout.batch(number))

    def documents(self, step: int, rank: int) -> Tensor:
        return self.batch(step).documents

    def loss(self, model: Qwen3, batch: TensorBatch) -> Tensor:
        """Return the mean cross-entropy of `batch`, in nats per learned token."""
        logits = self.forward(model, batch).flatten(0, 1)
        return F.cross_entropy(logits, batch.targets.flatten(), ignore_index=IGNORED)

    def forward(self, model: Qwen3, batch: TensorBatch) -> Tensor:
        logits: Tensor = model(batch.tokens, batch.documents)
        return logits

    def targets(self, batch: TensorBatch) -> Tensor:
        """Return what each position (B, T) should learn, from the tokens wherever they tell.

        Within a document that is the next token of the row. What follows the last one of a document only the
        shard knows, so there the batch is believed.
        """
        following, next_document = batch.tokens.roll(-1, 1), batch.documents.roll(-1, 1)
        next_document[:, -1] = -1
        told = (batch.targets != IGNORED) & (batch.documents == next_document)
        return torch.where(told, following, batch.targets)

    def train_step(self, step: int) -> None:
        take_step(
            self.model,
            self.optimizer,
            self.batch(step),
            training=self.training,
            step=step,
            steps=self.recipe.steps,
        )

    def checkpoint(self) -> dict[str, dict[str, Tensor]]:
        """Return copies of what a checkpoint on disk holds."""
        saved = {"weights": self.model.state_dict(), "moments": moments_of(self.model, self.optimizer)}
        return {part: {name: one.clone() for name, one in held.items()} for part, held in saved.items()}

    def resume(self, state: dict[str, dict[str, Tensor]]) -> None:
        """Continue from such a checkpoint, as a restarted training does."""
        restore(self.model, self.optimizer, weights=state["weights"], moments=state["moments"])

    def rebuild(self, dtype: torch.dtype | None = None) -> RecipeRun:
        """Return a fresh run like this one, computing in `dtype`."""
        compute_dtype = dtype or self.model.compute_dtype
        fresh = Qwen3(
            self.model.config, self.model.vocabulary, seed=self.recipe.seed, compute_dtype=compute_dtype
        )
        fresh.to(self.model.head_weight.device, dtype)
        return training_run(self.recipe, self.rows, fresh, build_optimizer(fresh, self.recipe.optimizer))


def declared_optimizer(recipe: Recipe) -> Optimizer:
    """Return what a recipe promises, written out again so that the optimizer does not vouch for itself."""
    config, training = recipe.optimizer, recipe.training

    def factor(step: int) -> float:
        """WSD: both slopes reach 0 one step outside of the run, and the lower one holds."""
        falling_steps = training.decay_fraction * recipe.steps
        fall = (recipe.steps - step) / falling_steps if falling_steps else 1.0
        return min((step + 1) / (training.warmup_steps + 1), 1.0, fall)

    def adamw(*parameters: str, weight_decay: float = 0.0) -> Group:
        return Group(
            parameters=parameters,
            algorithm="adamw",
            learning_rate=lambda step: config.adamw_learning_rate * factor(step),
            weight_decay=weight_decay,
            betas=(config.adamw_betas[0], config.adamw_betas[1]),
            eps=config.adamw_eps,
        )

    matrices = Group(
        parameters=("model.layers.*_proj.weight",),
        algorithm="muon",
        learning_rate=lambda step: config.muon_learning_rate * factor(step),
        weight_decay=config.muon_weight_decay,
        momentum=config.muon_momentum,
        nesterov=True,
    )
    undecayed = adamw("*norm.weight", "*embed_tokens.weight")
    head = adamw("lm_head.weight", weight_decay=config.adamw_weight_decay)
    return Optimizer(groups=(undecayed, head, matrices), clip_norm=training.gradient_clip)


def training_run(recipe: Recipe, rows: RowSource, model: Qwen3, optimizer: MuonAdamW) -> RecipeRun:
    """Return the run that the arbiter questions: `model` itself, or one of `recipe.audit.layers` layers."""
    layers = recipe.audit.layers
    if layers is None or layers == model.config.layers:
        return RecipeRun(recipe, rows, model, optimizer)
    config = dataclasses.replace(model.config, layers=layers)
    shallow = Qwen3(config, model.vocabulary, seed=recipe.seed, compute_dtype=model.compute_dtype)
    shallow.to(model.head_weight.device)
    return RecipeRun(recipe, rows, shallow, build_optimizer(shallow, recipe.optimizer))


def changes_since(certificate: Path, run: RecipeRun) -> tuple[str, ...]:
    """Return what has changed since `certificate` was issued for `run`; nothing while it holds."""
    try:
        issued = Certificate.read(certificate)
    except ArbiterError:
        return (f"{certificate.name} is missing or damaged",)
    return issued.staleness(scope_of(run))


def run_from_recipe(path: Path) -> RecipeRun:
    """Return the run of the recipe file `path` before its first step.

    Its rows are those of the run folder, or random documents when no tokens have been prepared.

    Raises:
        RecipeError: the recipe has problems.
        DataError: the run folder has tokens that do not fit the recipe.
    """
    recipe = read_recipe(path)
    prepared = (recipe.run_folder / "tokens").is_dir()
    rows = Rows.open(recipe, recipe.run_folder) if prepared else SyntheticRows(recipe)
    depth = recipe.audit.layers or recipe.model.layers
    arithmetic = choose_arithmetic(recipe.training.compute_dtype)
    model = Qwen3(
        dataclasses.replace(recipe.model, layers=depth),
        recipe.tokenizer.vocabulary,
        seed=recipe.seed,
        compute_dtype=arithmetic.compute_dtype,
    ).to(arithmetic.device)
    return RecipeRun(recipe, rows, model, build_optimizer(model, recipe.optimizer))


class SyntheticRows:
    """Rows of random documents, for a recipe whose text has not been prepared: every token is learned."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe

    @property
    def steps(self) -> int:
        return self._recipe.steps

    def batch(self, step: int) -> Batch:
        """Return the rows of `step`, a pure function of the recipe's seed and `step`."""
        training, vocabulary = self._recipe.training, self._recipe.tokenizer.vocabulary
        rng = np.random.default_rng([self._recipe.seed, step])
        shape = (training.batch_sequences, training.sequence_tokens)
        tokens = rng.integers(FIRST_WORD, vocabulary, shape)
        starts = rng.random(shape) < 1 / SYNTHETIC_DOCUMENT_TOKENS
        starts[:, 0] = True
        ends = np.roll(starts, -1, axis=1)
        tokens[starts] = BOS
        tokens[ends] = END
        targets = np.where(ends, IGNORED, np.roll(tokens, -1, axis=1))
        return Batch(tokens=tokens, targets=targets, documents=starts.cumsum(axis=1))
