"""What a monitor concludes from the numbers of a running training; no framework needed.

An adapter measures an `Observation` every few steps. `TensorWatch` compares it with those before: a finding
needs `patience` observations in a row, so that one odd batch alarms nobody.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.watches import TO_SIGMA

Numbers = NDArray[np.float64]  # (P,), one for each tensor

EASED = 0.01  # of the highest learning rate: below, as at the end of a schedule, stillness is no fault
MOSTLY = 0.9  # of the elements with a gradient: so many standing still is loss to rounding
REMEMBERED_UPDATES, UPDATES_BEFORE_JUDGEMENT = 32, 8
SURGE, LEAST_LOG_DEVIATION = 8.0, 0.3  # e^(8 * 0.3): eleven times the usual update
LARGEST_SURGE = 100.0  # times the usual update; what is beyond, no optimizer did
UNEXPLAINED = 10.0  # a norm may change by so many updates; the update is estimated from a sample
RESUMED_STEP = 10  # a counter near 0 at a later first step means that the optimizer's state was not restored

CAUSES = {
    "NONFINITE": "an overflow, a division by zero or a broken batch",
    "FROZEN": "a gradient and no movement: not in the optimizer, a learning rate of 0, or a detached copy",
    "LOST": "updates smaller than half a unit in the last place: keep master weights in float32",
    "DEAD": "no gradient: a severed operation, an unused module or a collapsed router",
    "MOVED": "declared frozen, and in the optimizer nevertheless",
    "CORRUPT": "memory or arithmetic of the device, or something that writes into the weights",
    "SURGE": "a broken batch, an unclipped gradient or a fault of the device",
    "SPIKE": "a broken batch, or a learning rate at its limit",
    "STUCK": "state that is never saved back: bias correction and decay never advance",
    "RESET": "a checkpoint was resumed without the state of the optimizer",
    "DOUBLE": "optimizer.step() is called twice for each step",
    "REPEATED": "a sampler without its position after a resume, or the same seed on each rank or epoch",
    "DUPLICATED": "workers or ranks that read the same rows",
    "SKIPPED": "a loss scale that is too high for this model; consider bfloat16",
    "COLLAPSED": "gradients that are never finite",
}
SUSPICIONS = {"SPIKE", "SURGE", "SKIPPED"}  # worth a look, and no proof of a fault


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one optimizer step did. Arrays (P,); a tensor without a gradient has the norm 0."""

    step: int
    gradient_norms: Numbers  # as the optimizer got them, so after clipping
    norms_before: Numbers  # of the weights
    norms: Numbers
    update_norms: Numbers  # estimated from the sampled elements
    alive: Numbers  # sampled elements with a gradient
    still: Numbers  # of these, the ones that did not move
    learning_rates: Numbers  # NaN for a tensor in no parameter group
    counters: Numbers  # of the optimizer's steps; NaN where it keeps none


class TensorWatch:
    """Judges observations of the same tensors; `numbers` are their elements, `epsilons` those of dtypes."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        numbers: Sequence[int],
        epsilons: Sequence[float],
        declared: Declared,
        patience: int,
    ) -> None:
        self.names = list(names)
        self.last: Observation | None = None
        self._roots = np.sqrt(np.maximum(np.array(numbers, dtype=float), 1))
        self._epsilons = np.array(epsilons, dtype=float)
        self._frozen = np.array([declared.is_frozen(name) for name in names], dtype=bool)
        excused = [declared.expects_disagreement(name) or declared.may_be_unused(name) for name in names]
        self._excused = np.array(excused, dtype=bool) | self._frozen
        self._patience = patience
        self._highest_rate = 0.0
        self._streaks: dict[str, NDArray[np.int64]] = defaultdict(
            lambda: np.zeros(len(names), dtype=np.int64)
        )
        self._updates: list[Numbers] = []

    def look(self, seen: Observation) -> list[Finding]:
        """Return what `seen` shows, given the observations before it."""
        finite = np.isfinite(seen.gradient_norms + seen.norms)
        found = [self._finding(i, "NONFINITE", f"at step {seen.step}") for i in np.flatnonzero(~finite)]
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            found += self._movement(seen, finite)
            found += self._counters(seen)
            found += self._corruption(seen, finite)
            found += self._surges(seen)
        self.last = seen
        return found

    @property
    def ratios(self) -> Mapping[str, Mapping[str, float]]:
        """The gradient norm and the update-to-weight ratio of each tensor at the last observation."""
        if self.last is None:
            return {}
        with np.errstate(invalid="ignore", divide="ignore"):
            ratios = np.where(self.last.norms > 0, self.last.update_norms / self.last.norms, 0.0)
        return {
            name: {"gradient_norm": float(norm), "update_to_weight": float(ratio)}
            for name, norm, ratio in zip(self.names, self.last.gradient_norms, ratios, strict=True)
        }

    def _movement(self, seen: Observation, finite: NDArray[np.bool_]) -> list[Finding]:
        in_optimizer = np.isfinite(seen.learning_rates)
        highest = float(np.max(seen.learning_rates[in_optimizer], initial=0.0))
        self._highest_rate = max(self._highest_rate, highest)
        rates = np.where(in_optimizer, seen.learning_rates, highest)
        asked = finite & ~self._frozen & (rates > 0) & (rates >= EASED * self._highest_rate * in_optimizer)
        with_gradient = asked & (seen.gradient_norms > 0) & (seen.alive > 0)
        still = with_gradient & (seen.still == seen.alive)
        half_ulp = self._half_ulp(seen)
        expected = rates * np.minimum(1.0, seen.gradient_norms / self._roots)
        low = self._epsilons > np.finfo(np.float32).eps
        lost = np.where(still, in_optimizer & (expected < half_ulp), low & (seen.still > MOSTLY * seen.alive))
        found = []
        for i in self._lasting("FROZEN", still & ~lost):
            where = "in its parameter group" if in_optimizer[i] else "in no parameter group"
            found.append(self._finding(i, "FROZEN", f"{where}, gradient norm {seen.gradient_norms[i]:.2g}"))
        for i in self._lasting("LOST", with_gradient & lost):
            detail = f"learning rate {rates[i]:.2g}, half an ulp of a typical weight is {half_ulp[i]:.2g}"
            found.append(self._finding(i, "LOST", detail))
        # Where none has a gradient and weights move, gradients are kept elsewhere: in main_grad, in hooks.
        elsewhere = not seen.gradient_norms.any() and bool((seen.update_norms > 0).any())
        dead = asked & ~self._excused & (seen.gradient_norms == 0) & ~np.bool_(elsewhere)
        for i in self._lasting("DEAD", dead):
            found.append(self._finding(i, "DEAD", f"in {self._patience} observations up to step {seen.step}"))
        strayed = self._frozen & (seen.update_norms > 0)
        return found + [self._finding(i, "MOVED", f"at step {seen.step}") for i in np.flatnonzero(strayed)]

    def _half_ulp(self, seen: Observation) -> Numbers:
        """Return half the spacing of numbers at the typical weight of each tensor."""
        typical = np.maximum(seen.norms / self._roots, np.finfo(np.float64).tiny)
        half: Numbers = self._epsilons / 2 * np.exp2(np.floor(np.log2(typical)))
        return half

    def _counters(self, seen: Observation) -> list[Finding]:
        known = np.isfinite(seen.counters)
        if self.last is None:
            fresh = known.any() and seen.step >= RESUMED_STEP and float(np.max(seen.counters[known])) <= 2
            detail = f"{float(np.max(seen.counters, initial=0, where=known)):.0f} steps at step {seen.step}"
            return [Finding(subject="optimizer counters", verdict="RESET", detail=detail)] if fresh else []
        steps = seen.step - self.last.step
        counted = seen.counters - self.last.counters
        detail = f"from {self.last.step} to {seen.step}: counter went on by "
        stuck = known & (counted == 0) & (seen.gradient_norms > 0) & (steps > 0)
        found = [self._finding(i, "STUCK", f"{detail}0") for i in self._lasting("STUCK", stuck)]
        for i in np.flatnonzero(known & (counted < 0)):
            found.append(self._finding(i, "RESET", f"{detail}{counted[i]:.0f}"))
        for i in self._lasting("DOUBLE", known & (counted > 1.5 * steps) & (steps > 0)):
            found.append(self._finding(i, "DOUBLE", f"{detail}{counted[i]:.0f}"))
        return found

    def _surges(self, seen: Observation) -> list[Finding]:
        """Compare each update, per unit of learning rate, with the usual one."""
        rates = np.where(seen.learning_rates > 0, seen.learning_rates, np.nan)
        sizes = np.log(np.where(seen.update_norms > 0, seen.update_norms, np.nan) / rates)
        usual, spread = self._usual_update()
        found = []
        for i in np.flatnonzero(sizes - usual > SURGE * spread):
            times = math.exp(min(sizes[i] - usual[i], 700.0))
            found.append(self._finding(i, "SURGE", f"{times:.3g} times the usual update at step {seen.step}"))
        self._updates = [*self._updates, sizes][-REMEMBERED_UPDATES:]
        return found

    def _usual_update(self) -> tuple[Numbers, Numbers]:
        """Return the logarithm of the median update per unit of learning rate, and its spread, or NaN."""
        if not self._updates:
            return np.full(len(self.names), np.nan), np.full(len(self.names), np.nan)
        history = np.array(self._updates)
        enough = np.isfinite(history).sum(axis=0) >= UPDATES_BEFORE_JUDGEMENT
        usual = np.where(enough, _median(history), np.nan)
        spread = np.maximum(TO_SIGMA * _median(np.abs(history - usual)), LEAST_LOG_DEVIATION)
        return usual, spread

    def _corruption(self, seen: Observation, finite: NDArray[np.bool_]) -> list[Finding]:
        """A norm cannot change by more than the updates: |norm(w + u) - norm(w)| <= norm(u)."""
        plausible = LARGEST_SURGE * np.exp(self._usual_update()[0]) * seen.learning_rates
        update = np.fmin(seen.update_norms, plausible)
        jumps = [(seen.norms_before, seen.norms, update)]
        if self.last is not None:
            explained = np.maximum(update, self.last.update_norms) * (seen.step - self.last.step)
            jumps.append((self.last.norms, seen.norms_before, explained))
        found = []
        for before, after, explained in jumps:
            jump = np.abs(after - before)
            bad = finite & (before > 0) & (jump > before) & (jump > UNEXPLAINED * explained)
            for i in np.flatnonzero(bad):
                detail = f"norm {before[i]:.3g} became {after[i]:.3g} by step {seen.step}"
                found.append(self._finding(i, "CORRUPT", f"{detail}, updates explain {explained[i]:.2g}"))
        return found

    def _lasting(self, kind: str, now: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the tensors for which `now` holds the `patience`-th time in a row."""
        streak = np.where(now, self._streaks[kind] + 1, 0)
        self._streaks[kind] = streak
        return np.flatnonzero(streak == self._patience)

    def _finding(self, i: np.integer[Any], verdict: str, detail: str) -> Finding:
        return Finding(subject=self.names[i], verdict=verdict, detail=detail)


def sentences(findings: Iterable[Finding]) -> list[str]:
    """Return one line for each kind of finding: what, where, and the likely cause."""
    kinds: dict[str, list[Finding]] = defaultdict(list)
    for finding in findings:
        kinds[finding.verdict].append(finding)
    return [
        f"{kind}: {named([one.subject for one in alike])} ({alike[0].detail}). Likely cause: {CAUSES[kind]}"
        for kind, alike in kinds.items()
    ]


def conclusion(findings: Sequence[Finding], *, steps: int, measured: int) -> Check:
    """Return the check that stands for a whole monitored run."""
    verdict = Verdict.INCONCLUSIVE if findings or not measured else Verdict.PASS
    if any(finding.verdict not in SUSPICIONS for finding in findings):
        verdict = Verdict.FAIL
    evidence = f"{steps} steps, {measured} of them measured tensor by tensor"
    lines = "; ".join(sentences(findings))
    return Check(
        name="monitor",
        verdict=verdict,
        evidence=f"{evidence}: {lines}" if lines else f"{evidence}; nothing to report",
        findings=tuple(findings),
    )


def _median(history: NDArray[np.float64]) -> Numbers:
    """Return the median over the first axis; NaN for a column that has no number, without a warning."""
    ordered = np.sort(history, axis=0)  # NaN goes last
    count = np.isfinite(history).sum(axis=0)
    columns = np.arange(history.shape[1])
    low, high = ordered[np.maximum(count - 1, 0) // 2, columns], ordered[count // 2 % len(ordered), columns]
    middle: Numbers = np.where(count > 0, (low + np.where(count % 2, low, high)) / 2, np.nan)
    return middle
