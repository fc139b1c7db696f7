"""What a monitor follows besides the tensors: the loss, the batches and the loss scale. Numbers only."""

from __future__ import annotations

import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.certificate import Finding

REMEMBERED_LOSSES = 64
LOSSES_BEFORE_JUDGEMENT = 16
SPIKE = 8.0  # robust standard deviations above the median of the remembered losses
LEAST_DEVIATION = 0.05  # of the median: a loss that hardly moves would make a spike of everything
TO_SIGMA = 1.4826  # a median absolute deviation in standard deviations of a normal distribution
REMEMBERED_BATCHES = 200_000
LARGEST_DUPLICATE_SHARE = 1 / 8  # of the rows of a batch; one pair in a small corpus is no fault
SCALE_WINDOW, MOST_SKIPPED = 20, 5  # a healthy loss scale skips one step in some thousand, and at first a few


class LossWatch:
    """Finds a loss that is not finite, and one that stands out from those before it."""

    def __init__(self) -> None:
        self._losses: deque[float] = deque(maxlen=REMEMBERED_LOSSES)
        self._inside = False  # a spike that lasts is one spike

    def look(self, step: int, loss: float) -> list[Finding]:
        """Return what the loss of optimizer step `step` shows."""
        if not math.isfinite(loss):
            return [Finding(subject="loss", verdict="NONFINITE", detail=f"{loss} at step {step}")]
        found = []
        deviations = self._deviations(loss)
        if deviations > SPIKE and not self._inside:
            median = float(np.median(self._losses))
            detail = f"{loss:.4g}, where {median:.4g} was usual"
            found = [Finding(subject=f"loss at step {step}", verdict="SPIKE", detail=detail)]
        self._inside = deviations > SPIKE
        self._losses.append(loss)
        return found

    def _deviations(self, loss: float) -> float:
        if len(self._losses) < LOSSES_BEFORE_JUDGEMENT:
            return 0.0
        losses = np.array(self._losses)
        median = float(np.median(losses))
        spread = TO_SIGMA * float(np.median(np.abs(losses - median)))
        return (loss - median) / max(spread, LEAST_DEVIATION * abs(median), 1e-12)


class BatchWatch:
    """Finds a batch that was trained on before, and rows that a batch has twice.

    `epoch_steps` is the number of optimizer steps after which a batch may come again. Rows are known by a
    hash; 0 stands for a row of one repeated token, as padding.
    """

    def __init__(self, epoch_steps: int | None) -> None:
        self._epoch_steps = epoch_steps
        self._seen: dict[int, int] = {}  # content -> step

    def look(self, step: int, rows: NDArray[np.int64]) -> list[Finding]:
        """Return what the hashes of the rows of optimizer step `step` show."""
        real = np.sort(rows[rows != 0])
        found = []
        doubles = int((real[1:] == real[:-1]).sum())
        if doubles > LARGEST_DUPLICATE_SHARE * len(real):
            detail = f"{doubles} of {len(real)} rows occur twice at step {step}"
            found.append(Finding(subject="rows of a batch", verdict="DUPLICATED", detail=detail))
        if not len(real):
            return found
        content = hash(real.tobytes())
        before = self._seen.pop(content, None)
        if before is not None and (self._epoch_steps is None or 0 < step - before < self._epoch_steps):
            detail = f"step {step} has the rows of step {before}"
            if self._epoch_steps is None:
                detail += "; if a new epoch begins there, declare epoch_steps"
            found.append(Finding(subject="batch", verdict="REPEATED", detail=detail))
        self._seen[content] = step
        if len(self._seen) > REMEMBERED_BATCHES:
            del self._seen[next(iter(self._seen))]
        return found


class ScaleWatch:
    """Finds a loss scale (float16 training) that collapsed, and steps that were skipped too often."""

    def __init__(self) -> None:
        self.skipped_steps = 0
        self.lowest: float | None = None
        self._recent: deque[bool] = deque(maxlen=SCALE_WINDOW)

    def step(self, step: int, *, skipped: bool) -> list[Finding]:
        """Count one call of the optimizer, or its absence."""
        self.skipped_steps += skipped
        self._recent.append(skipped)
        if sum(self._recent) <= MOST_SKIPPED:
            return []
        detail = f"{sum(self._recent)} of the {len(self._recent)} steps up to {step}: gradients overflow"
        return [Finding(subject="optimizer steps", verdict="SKIPPED", detail=detail)]

    def look(self, step: int, scale: float) -> list[Finding]:
        """Return what the scale at `step` shows: below 1 it no longer protects small gradients."""
        self.lowest = scale if self.lowest is None else min(self.lowest, scale)
        if math.isfinite(scale) and scale >= 1.0:
            return []
        return [Finding(subject="loss scale", verdict="COLLAPSED", detail=f"{scale:.3g} at step {step}")]
