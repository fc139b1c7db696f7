"""Confidence intervals by resampling documents: tokens of one text are not independent, texts nearly are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 1000
SEED = 0  # the same documents give the same interval
LOWER, UPPER = 0.025, 0.975


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of sum(numerators) / sum(denominators), one of each for a document."""
    low, high = np.quantile(resampled_ratios(numerators, denominators), [LOWER, UPPER])
    return float(low), float(high)


def resampled_ratios(numerators: Sequence[float], denominators: Sequence[float]) -> NDArray[np.float64]:
    """Return the ratio of the sums over each resample (RESAMPLES,) of the documents, with replacement."""
    count = len(numerators)
    draws = np.random.default_rng(SEED).integers(count, size=(RESAMPLES, count))
    tops, bottoms = np.array(numerators, np.float64), np.array(denominators, np.float64)
    ratios: NDArray[np.float64] = tops[draws].sum(axis=1) / bottoms[draws].sum(axis=1)
    return ratios
