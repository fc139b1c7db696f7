"""What simpler habits find: a look at the gradients, and a look at the loss curve."""

from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any

import torch

from faults.subject import ZooRun

CURVE_STEPS, LAST_STEPS = 60, 10
CURVE_SEEDS = (7, 8, 9, 10, 11)
DEVIATIONS = 2.0  # of the last losses of healthy seeds


def nonzero_check(run: Any) -> bool:
    """The original arbiter: alarm unless each trainable parameter gets a finite gradient, not all zero."""
    run.model.zero_grad()
    run.loss(run.model, run.batch(0)).backward()
    found = [p.grad for p in run.model.parameters() if p.requires_grad]
    gradients = [g.to_dense() if g is not None and g.is_sparse else g for g in found]
    run.model.zero_grad()
    return not all(g is not None and bool(g.isfinite().all()) and bool(g.any()) for g in gradients)


def last_loss(run: ZooRun) -> float:
    """Train, and return the mean loss of the last steps as the program itself would log it."""
    losses = []
    for step in range(CURVE_STEPS):
        if step >= CURVE_STEPS - LAST_STEPS:
            with torch.no_grad():
                losses.append(float(run.loss(run.model, run.batch(step))))
        run.train_step(step)
    return fmean(losses)


Settings = tuple[tuple[str, Any], ...]
Band = tuple[float, float]


def settings_of(sound: Callable[[], ZooRun]) -> Settings:
    """Return what tells one sound run from another, apart from its seed and its beliefs."""
    settings = sound().settings()
    return tuple((name, value) for name, value in settings.items() if name not in ("seed", "declared"))


def healthy_band(settings: Settings) -> Band:
    """Return the lowest and highest last loss that healthy seeds make likely."""
    losses = [last_loss(ZooRun(**dict(settings), seed=seed)) for seed in CURVE_SEEDS]
    spread = DEVIATIONS * stdev(losses)
    return fmean(losses) - spread, fmean(losses) + spread


def curve_inspection(run: ZooRun, band: Band) -> str:
    """Return "normal", "better", "worse" or "crashed": where the curve ends against healthy seeds."""
    low, high = band
    try:
        last = last_loss(run)
    except Exception:  # a fault may well stop the training
        return "crashed"
    return "better" if last < low else "normal" if last <= high else "worse"
