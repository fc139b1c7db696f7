"""How busy the machine is with other work, and so whether threads should spin between two operators.

A thread that spins is there at once when the next operator starts: 83 against 70 tokens/s of the base model
on two cores alone. Beside one busy process it takes the core from the thread that it waits for: 43 against
54. So threads spin only while a core is free for each of them. What others take is read from /proc/stat;
where there is none, nothing spins.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from mothertongue.threads import allowed_cpus, read

REVIEW_S = 1.0  # /proc/stat counts hundredths of a second, so a shorter look says little
REST_S = 10.0  # before threads spin again: a change loads the graph anew, up to half a second
# Between the two, things stay as they are: a machine on the edge must not change its mind every second.
QUIET_CPUS, BUSY_CPUS = 0.25, 0.5
IDLE_COLUMNS = (3, 4)  # idle and iowait
GUEST_COLUMNS = 8  # columns from here on are counted in the earlier ones already


class Watch:
    """Measures how many CPUs other processes take, from one look to the next."""

    def __init__(self, *, root: Path = Path("/")) -> None:
        self._stat = root / "proc/stat"
        self._seen = self._now()

    @property
    def age_s(self) -> float:
        """The seconds since the last look."""
        return time.monotonic() - self._seen[0]

    def others(self) -> float | None:
        """Return how many of the allowed CPUs others took at least since the last look; None if not known."""
        (then_s, busy_then_s, own_then_s), self._seen = self._seen, self._now()
        now_s, busy_now_s, own_now_s = self._seen
        if busy_then_s is None or busy_now_s is None or now_s <= then_s:
            return None
        taken_s = (busy_now_s - busy_then_s) - (own_now_s - own_then_s)
        # The counters are in ticks: over the short look while a model loads, that alone could look like work.
        taken_s -= len(allowed_cpus()) / os.sysconf("SC_CLK_TCK")
        return max(0.0, taken_s / (now_s - then_s))

    def _now(self) -> tuple[float, float | None, float]:
        """Return the time, the seconds that the allowed CPUs were busy, and those of this process."""
        return time.monotonic(), busy_seconds(self._stat, allowed_cpus()), time.process_time()


def busy_seconds(stat: Path, cpus: set[int]) -> float | None:
    """Return for how many seconds `cpus` together have been busy since the start; None if not known."""
    total = 0
    # The lines of the CPUs are short; that of the interrupts has a number for each kind.
    lines = [line.split() for line in (read(stat) or "").splitlines() if line.startswith("cpu")]
    counted = {f"cpu{cpu}" for cpu in cpus}
    for name, *columns in (line for line in lines if line[0] in counted):
        counts = [int(column) for column in columns[:GUEST_COLUMNS]]
        total += sum(count for place, count in enumerate(counts) if place not in IDLE_COLUMNS)
        counted.discard(name)
    return None if counted else total / os.sysconf("SC_CLK_TCK")


class SpinPolicy:
    """Decides whether `threads` threads should spin, from what others take of `cpus` CPUs."""

    def __init__(self, *, threads: int, cpus: int, quota: float | None) -> None:
        self._spare_cpus = cpus - threads
        # Under a quota a spinning thread spends the time that the working ones need.
        self._never = quota is not None or threads == 1
        self._ceased_s: float | None = None

    def wanted(self, others_cpus: float | None, *, spinning: bool, now_s: float) -> bool:
        """Return whether threads should spin from `now_s` on, given that they are `spinning`."""
        if self._never or others_cpus is None:
            return False
        missing = others_cpus - self._spare_cpus
        if spinning and missing >= BUSY_CPUS:
            self._ceased_s = now_s
            return False
        rested = self._ceased_s is None or now_s - self._ceased_s >= REST_S
        return spinning or (missing < QUIET_CPUS and rested)
