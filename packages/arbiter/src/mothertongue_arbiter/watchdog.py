"""The time limit of an audit in the same process: a loss that hangs must not hang the audit.

Python cannot stop a function that does not return. So a thread watches the clock; when the time is over it
states what was answered until then, names the check that hung, and ends the whole process. Native code that
never gives the interpreter lock back stops that thread as well; no kernel of torch does so.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from mothertongue_arbiter.certificate import Certificate, Check, NotRun, Verdict

CHECK_SHARE = 0.5  # of the time of the audit: the most that one check may take
LOOK_EVERY_SECONDS = 0.05


class Watchdog:
    """Follows an audit, and calls `expired` with the certificate of what was done when its time is over.

    `expired` must not return to the audit: it prints and ends the process.
    """

    def __init__(self, seconds: float, *, step: int, expired: Callable[[Certificate], None]) -> None:
        self.seconds = seconds
        self.step = step
        self.answers: list[Check | NotRun] = []
        self._expired = expired
        self._run: Any = None
        self._name = "reading the run"
        self._done = threading.Event()

    def __enter__(self) -> Self:
        self._started = self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._watch, name="time limit of the audit", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def opened(self, run: Any) -> None:
        """Remember the run, for the shapes that the certificate states."""
        self._run = run

    def begins(self, name: str) -> None:
        """Note which check runs from now on."""
        self._name, self._begun = name, time.monotonic()

    def answered(self, answer: Check | NotRun) -> None:
        self.answers.append(answer)

    def certificate(self) -> Certificate:
        """Return the certificate of what was answered so far."""
        waited = time.monotonic() - self._begun
        hung = Check(
            name=self._name,
            verdict=Verdict.INCONCLUSIVE,
            evidence=f"no answer within {waited:.0f} s; the audit had {self.seconds:g} s (--time-limit)",
            cause="a loss, a batch or a step that hangs, or too little time",
            seconds=round(waited, 3),
        )
        parameters = dict(getattr(getattr(self._run, "model", None), "named_parameters", dict)())
        return Certificate(
            step=self.step,
            checks=(*(one for one in self.answers if isinstance(one, Check)), hung),
            not_run=(
                *(one for one in self.answers if isinstance(one, NotRun)),
                NotRun(name=f"all after {self._name}", reason="the time of the audit was over"),
            ),
            shapes={name: tuple(one.shape) for name, one in parameters.items()},
            dtypes={name: str(one.dtype).removeprefix("torch.") for name, one in parameters.items()},
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _watch(self) -> None:
        while not self._done.wait(LOOK_EVERY_SECONDS):
            now = time.monotonic()
            if now - self._started > self.seconds or now - self._begun > CHECK_SHARE * self.seconds:
                self._expired(self.certificate())
                return
