"""How often a monitor may look, so that its measured cost stays inside its budget."""

from __future__ import annotations

import math
import statistics
import time
from collections import deque
from collections.abc import Callable

RECENT = 9  # steps and looks whose median counts: one slow step is not the machine's pace


class Pace:
    """Times the looks of a monitor and the steps between them.

    A measurement comes every `every` steps, or less often where `budget`, a share of the time of a step, asks
    for it. Without a budget the pace is fixed. `clock` returns seconds.
    """

    def __init__(
        self, *, every: int, budget: float | None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._least_every = every
        self._budget = budget
        self._clock = clock
        self._steps: deque[float] = deque(maxlen=RECENT)
        self._costs: dict[str, deque[float]] = {
            kind: deque(maxlen=RECENT) for kind in ("rows", "arm", "measure")
        }
        self._total_cost = self._total = 0.0
        self._ended: float | None = None
        self._began = 0.0
        self._lap = 0.0
        self._looks = 0
        self._measured_at = 1 - every  # the second look is the first measurement

    def begin(self) -> None:
        """A look begins; what lies behind is a step."""
        self._began = self._lap = self._clock()
        self._looks += 1
        if self._ended is not None:
            self._steps.append(self._began - self._ended)
            self._total += self._began - self._ended

    def spent(self, kind: str) -> None:
        """A part of the look is done: `rows`, `arm` or `measure`."""
        now = self._clock()
        self._costs[kind].append(now - self._lap)
        self._lap = now
        if kind == "measure":
            self._measured_at = self._looks

    def device_seconds(self, kind: str, seconds: float) -> None:
        """A part kept the device busy for `seconds`, which the host did not see."""
        costs = self._costs[kind]
        if costs:
            costs[-1] = max(costs[-1], seconds)

    def end(self) -> None:
        """The look is over."""
        self._ended = self._clock()
        self._total_cost += self._ended - self._began

    @property
    def must_arm(self) -> bool:
        """Whether the next step is to be measured."""
        return self._looks + 1 - self._measured_at >= self.every

    @property
    def may_hash(self) -> bool:
        """Whether the rows of this step are looked at: of each, unless steps take less than some ms."""
        return self._looks % self._spread(self._cost("rows")) == 0

    @property
    def every(self) -> int:
        """How many steps lie between two measurements now."""
        return max(self._least_every, self._spread(self._cost("arm") + self._cost("measure")))

    @property
    def cost_share(self) -> float:
        """The measured share of all looks in the time of the training, after the first step."""
        return self._total_cost / (self._total + self._total_cost) if self._total else 0.0

    def _cost(self, kind: str) -> float:
        return statistics.median(self._costs[kind]) if self._costs[kind] else 0.0

    def _spread(self, seconds: float) -> int:
        """Return over how many steps a cost must be spread; both costs have half of the budget."""
        step = statistics.median(self._steps) if self._steps else 0.0
        if self._budget is None or step == 0:
            return 1
        return max(1, math.ceil(seconds / (self._budget / 2 * step)))
