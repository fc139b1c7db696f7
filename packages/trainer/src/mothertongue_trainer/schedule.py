"""The learning rate as a pure function of the step."""

from __future__ import annotations


def learning_rate_factor(step: int, *, steps: int, warmup_steps: int, decay_fraction: float) -> float:
    """Return what step `step` (from 0) of `steps` multiplies the peak learning rates with, in (0, 1].

    WSD: warm-up, stable, decay (arXiv:2404.06395). Linear from 0 over `warmup_steps`, constant, then linear
    to 0 over the last `decay_fraction` of the run; where the slopes meet, the lower one holds. Both zeros lie
    just outside the run, so that no step is spent on nothing.
    """
    rise = (step + 1) / (warmup_steps + 1)
    fall = (steps - step) / (decay_fraction * steps) if decay_fraction else 1.0
    return min(1.0, rise, fall)
