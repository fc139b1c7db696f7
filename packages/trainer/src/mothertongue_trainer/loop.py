"""The training loop: audit, then step, log, save, until the tokens of the recipe are spent.

Whatever ends a run early, the same call continues it, and the weights at the end are the same bit for bit, on
the same machine with the same number of threads: batches are a pure function of the step, and a checkpoint
holds the rest.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mothertongue.errors import CheckFailed, CheckpointError, DataError
from mothertongue.tokenizer import Tokenizer
from mothertongue_arbiter.audit import audit
from mothertongue_arbiter.certificate import Verdict
from mothertongue_trainer.arithmetic import Arithmetic, choose_arithmetic
from mothertongue_trainer.audit import RecipeRun, changes_since, training_run
from mothertongue_trainer.checkpoint import (
    TrainingState,
    find_checkpoint,
    prune_checkpoints,
    recipe_sha256,
    resume,
    save_checkpoint,
)
from mothertongue_trainer.clock import StepClock
from mothertongue_trainer.events import (
    AuditCheckBegins,
    Audited,
    CertificateStale,
    CheckpointSaved,
    Listener,
    RunOpened,
    StepDone,
)
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.interruption import StopRequest
from mothertongue_trainer.metrics import MetricsLog, StepMetrics
from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import MuonAdamW, build_optimizer, parameter_table
from mothertongue_trainer.provenance import code_commit, versions
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.rows import Rows
from mothertongue_trainer.step import RowSource, TensorBatch, take_step
from mothertongue_trainer.watch import TrainingWatch

LOG_EVERY_STEPS = 10
FORECAST_AFTER_STEPS = 6  # the first two are slow: memory is still being claimed


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended."""

    finished: bool  # false: it was asked to stop, and the same call continues
    checkpoint: Path
    step: int
    steps: int
    tokens: int
    seconds: float  # spent in steps, since the start of the run
    verdict: str  # of the audit before the first step

    def as_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "checkpoint": str(self.checkpoint)}


@dataclass(frozen=True, kw_only=True)
class Run:
    """Everything a run works with, opened once."""

    recipe: Recipe
    folder: Path
    rows: RowSource
    arithmetic: Arithmetic
    model: Qwen3
    optimizer: MuonAdamW
    despite_audit: bool
    progress: Listener


def train(
    recipe: Recipe,
    run_folder: Path,
    *,
    despite_audit: bool = False,
    progress: Listener = lambda event: None,
    rows: RowSource | None = None,
) -> TrainResult:
    """Train the model of `recipe` in `run_folder`, from the start or from the newest checkpoint there.

    `rows` replaces the prepared tokens of the run folder. Ctrl-C finishes the step, saves and returns.

    Raises:
        CheckFailed: the audit failed and not `despite_audit`, or a step gave values that are not finite.
        CheckpointError: the checkpoint is of another recipe or tokenizer.
        DataError: tokens or tokenizer are missing or do not fit the recipe.
    """
    tokenizer_sha256 = _fitting_tokenizer(recipe, run_folder)
    arithmetic = choose_arithmetic(recipe.training.compute_dtype)
    model = Qwen3(
        recipe.model,
        recipe.tokenizer.vocabulary,
        seed=recipe.seed,
        compute_dtype=arithmetic.compute_dtype,
    ).to(arithmetic.device)
    run = Run(
        recipe=recipe,
        folder=run_folder,
        rows=rows or Rows.open(recipe, run_folder),
        arithmetic=arithmetic,
        model=model,
        optimizer=build_optimizer(model, recipe.optimizer),
        despite_audit=despite_audit,
        progress=progress,
    )
    with _deterministic(arithmetic.device):
        return _steps(run, _start(run, tokenizer_sha256))


def _start(run: Run, tokenizer_sha256: str) -> TrainingState:
    """Continue from the newest checkpoint, or audit the run and begin."""
    checkpoint = find_checkpoint(run.folder)
    state = checkpoint and resume(checkpoint, run.recipe, tokenizer_sha256, run.model, run.optimizer)
    if state and state.compute_dtype != run.arithmetic.dtype_name:
        raise CheckpointError(
            f"{checkpoint}: began in {state.compute_dtype}, this machine would go on in "
            f"{run.arithmetic.dtype_name} and end with other weights; continue on one like the first"
        )
    run.progress(
        RunOpened(
            parameters=parameter_table(run.model, run.recipe.optimizer),
            parameter_count=run.model.parameter_count,
            device=run.arithmetic.device_name,
            compute_dtype=run.arithmetic.dtype_name,
            wanted_dtype=run.recipe.training.compute_dtype,
            resumed_step=state.step if state else 0,
            steps=run.rows.steps,
            tokens=run.rows.steps * run.recipe.step_tokens,
        )
    )
    if state:
        return _recertified(run, state)
    audited = training_run(run.recipe, run.rows, run.model, run.optimizer)
    verdict, certificate_sha256 = _audit(run, audited, step=0)
    return TrainingState(
        step=0,
        tokens=0,
        recipe=run.recipe.as_dict(),
        recipe_sha256=recipe_sha256(run.recipe),
        tokenizer_sha256=tokenizer_sha256,
        certificate_verdict=verdict,
        certificate_sha256=certificate_sha256,
        despite_audit=verdict == Verdict.FAIL,
        compute_dtype=run.arithmetic.dtype_name,
        device=run.arithmetic.device_name,
        versions=versions(),
        commit=code_commit(),
    )


def _recertified(run: Run, state: TrainingState) -> TrainingState:
    """If the certificate of a run that continues is stale, audit the run as it was before its first step."""
    audited = training_run(run.recipe, run.rows, run.model, run.optimizer)
    changed = changes_since(run.folder / "audit" / "certificate.json", audited)
    if not changed:
        return state
    run.progress(CertificateStale(changed=changed))
    verdict, certificate_sha256 = _audit(run, audited.rebuild(), step=0)
    return dataclasses.replace(
        state,
        certificate_verdict=verdict,
        certificate_sha256=certificate_sha256,
        despite_audit=state.despite_audit or verdict == Verdict.FAIL,
    )


def _steps(run: Run, state: TrainingState) -> TrainResult:
    """Do the steps that `state` leaves to do."""
    recipe, steps, first = run.recipe, run.rows.steps, state.step
    training = recipe.training
    saved = find_checkpoint(run.folder) or run.folder
    watch = TrainingWatch(recipe, run.folder, run.model, run.optimizer, progress=run.progress)
    with MetricsLog(run.folder / "metrics.jsonl", resumed_step=first) as log, StopRequest() as stop, watch:
        clock = StepClock(recipe, device=run.arithmetic.device_name, seconds=log.seconds)
        for step in range(first, steps):
            batch = TensorBatch.of(run.rows.batch(step), run.arithmetic.device)
            with clock:
                result = take_step(run.model, run.optimizer, batch, training=training, step=step, steps=steps)
                watch.observe(step, batch, result.loss)
            done = step + 1
            state = dataclasses.replace(state, step=done, tokens=done * run.recipe.step_tokens)
            run.progress(StepDone(step=done, loss=result.loss))
            if done - first == FORECAST_AFTER_STEPS:
                run.progress(clock.forecast(steps - done))
            if done % LOG_EVERY_STEPS == 0 or done == steps:
                metrics = StepMetrics(
                    step=done,
                    loss=result.loss,
                    lr=max(group["lr"] for group in run.optimizer.param_groups),
                    tokens=state.tokens,
                    tokens_per_second=clock.lap(),
                    grad_norm=result.grad_norm,
                    seconds=clock.seconds,
                )
                log.write(metrics)
                run.progress(metrics)
            if done == training.audit_again_after_steps < steps:
                audited = RecipeRun(run.recipe, run.rows, run.model, run.optimizer)
                verdict, _ = _audit(run, audited, step=done)
                state = dataclasses.replace(
                    state, despite_audit=state.despite_audit or verdict == Verdict.FAIL
                )
            if stop.requested or done % training.checkpoint_every_steps == 0 or done == steps:
                saved = save_checkpoint(run.folder, run.model, run.optimizer, state)
                prune_checkpoints(run.folder, keep=training.keep_checkpoints)
                run.progress(CheckpointSaved(folder=saved))
            if stop.requested:
                break
    return TrainResult(
        finished=state.step == steps,
        checkpoint=saved,
        step=state.step,
        steps=steps,
        tokens=state.tokens,
        seconds=round(clock.seconds, 1),
        verdict=state.certificate_verdict,
    )


def _audit(run: Run, audited: RecipeRun, *, step: int) -> tuple[str, str]:
    """Have the arbiter question `audited`; return the verdict and the hash of the certificate.

    Raises:
        CheckFailed: the verdict is FAIL, and the run does not go on despite it.
    """
    options = dataclasses.replace(
        audited.options, progress=lambda name: run.progress(AuditCheckBegins(name=name))
    )
    certificate = audit(audited, step=step, options=options)
    path = run.folder / "audit" / (f"certificate-step-{step}.json" if step else "certificate.json")
    certificate.write(path)
    run.progress(
        Audited(
            step=step,
            verdict=str(certificate.verdict),
            checks=len(certificate.checks),
            not_run=len(certificate.not_run),
            certificate=path,
        )
    )
    if certificate.verdict == Verdict.FAIL and not run.despite_audit:
        failed = next(check for check in certificate.checks if check.verdict == Verdict.FAIL)
        raise CheckFailed(
            f"{path}: the audit failed at '{failed.name}': {failed.evidence}; "
            "mend it, or train all the same with --despite-audit"
        )
    return str(certificate.verdict), hashlib.sha256(path.read_bytes()).hexdigest()


def _fitting_tokenizer(recipe: Recipe, run_folder: Path) -> str:
    """Return the hash of the run folder's tokenizer.

    Raises:
        DataError: there is none, or it has another number of entries than the recipe says.
    """
    folder = run_folder / "tokenizer"
    found = Tokenizer.open(folder).vocabulary
    if found != recipe.tokenizer.vocabulary:
        raise DataError(
            f"{folder}: the tokenizer has {found} entries, the recipe says {recipe.tokenizer.vocabulary}; a "
            "recipe that does not fit its tokenizer: run `mothertongue tokenizer` again"
        )
    return hash_tokenizer(folder)


@contextmanager
def _deterministic(device: torch.device) -> Iterator[None]:
    """On a CPU, have torch refuse any operation whose result could differ between two runs."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(before or device.type == "cpu")
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
