"""Audit a frame with its loss oracle: the same judgement as for a torch run, without any framework."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from mothertongue_arbiter.certificate import Certificate, Check, Finding, NotRun, TensorVerdict, Verdict
from mothertongue_arbiter.convention import answers_of_the_oracle
from mothertongue_arbiter.frame import Frame
from mothertongue_arbiter.frame_witness import FrameWitness, Oracle
from mothertongue_arbiter.judgement import Judge, named
from mothertongue_arbiter.oracle import OutOfTime
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.scope import revision
from mothertongue_arbiter.stored_arrays import DTYPES

NEEDS_ORACLE = "no oracle; add --oracle 'COMMAND', a program that answers with the loss of moved parameters"
NEEDS_ONLY = 'the oracle cannot move parts of a tensor; see "only" in docs/frame-format.md'
NEEDS_RUN = "a frame holds one backward pass; hand over a TrainingRun for this check"
CHECKS_OF_A_RUN = ("optimizer coverage", "labels", "causality", "gradient handed over", "movement")
# A failure of one of these leaves nothing that the checks after it could tell.
DECISIVE = ("loss of the oracle", "answers of the oracle")


class Hearing:
    """Asks the questions about one frame in order, until one of them makes the rest meaningless."""

    def __init__(self, frame: Frame, oracle: Oracle | None, declared: Declared, seed: int) -> None:
        self.frame = frame
        self.oracle = oracle
        self.witness = FrameWitness(frame, oracle, seed=seed)
        self.judge = Judge(self.witness, declared, step=frame.step)
        self.checks: list[Check] = []
        self.not_run: list[NotRun] = []

    def questions(self) -> dict[str, Callable[[], Check | NotRun]]:
        """Return the questions in the order in which they build on each other."""
        judge = self.judge
        return {
            "finiteness": self._finiteness,
            "loss of the oracle": lambda: judge.same_loss(self.frame.loss),
            "answers of the oracle": lambda: answers_of_the_oracle(self.witness, self._alive(), judge.floor),
            "gradient presence": judge.presence,
            "gradient values": self._values,
            "dead elements": self._dead_elements,
        }

    def hear(self, progress: Callable[[str], None]) -> None:
        """Ask all questions that have an answer."""
        silence = ""
        for name, question in self.questions().items():
            if name != "finiteness" and self.oracle is None:
                silence = NEEDS_ORACLE
            if silence:
                self.not_run.append(NotRun(name=name, reason=silence))
                continue
            progress(name)
            begin = time.perf_counter()
            try:
                answer = question()
            except OutOfTime:
                silence = f"the time of the audit was over, at '{name}' (--time-limit)"
                evidence = "no answer before the time of the audit was over"
                answer = Check(name=name, verdict=Verdict.INCONCLUSIVE, evidence=evidence)
            seconds = round(time.perf_counter() - begin, 3)
            if isinstance(answer, NotRun):
                self.not_run.append(answer)
                continue
            self.checks.append(replace(answer, seconds=seconds))
            silence = silence or self._silenced_by(answer)

    def _silenced_by(self, check: Check) -> str:
        """Return why nothing can be asked after `check`; nothing when it can."""
        if check.name in DECISIVE and check.verdict == Verdict.FAIL:
            return f"'{check.name}' failed, so its losses prove nothing about the gradients"
        if not math.isfinite(self.frame.loss) or self._not_finite():
            return "the loss or a parameter is not finite, so that no slope is"
        return ""

    def _not_finite(self) -> list[str]:
        """Return the parameters with an entry that is no finite number."""
        names = [tensor.name for tensor in self.frame.tensors if math.prod(tensor.shape)]
        return [name for name in names if not math.isfinite(self.witness.norm(f"param/{name}"))]

    def _finiteness(self) -> Check:
        check, bad = self.judge.finiteness(self.frame.loss), self._not_finite()
        if not bad:
            return check
        found = [Finding(subject=name, verdict=TensorVerdict.NONFINITE, detail="parameter") for name in bad]
        return replace(
            check,
            verdict=Verdict.FAIL,
            evidence=f"parameters that are not finite: {named(bad)}",
            cause="a step that overflowed: the run was lost before this one",
            findings=(*found, *check.findings),
        )

    def _alive(self) -> list[str]:
        return [name for name, norm in self.judge.norms.items() if norm and math.isfinite(norm)]

    def _values(self) -> Check:
        """A float32 gradient can be proved wrong, never right."""
        check = self.judge.values(along_itself=False)
        gradients = [f"grad/{name}" for name in self.witness.names() if f"grad/{name}" in self.frame.arrays]
        if check.verdict != Verdict.PASS or all(self.frame.dtype(key) == "F64" for key in gradients):
            return check
        evidence = f"{check.evidence}; but the frame holds float32 gradients: write it in float64"
        return replace(check, verdict=Verdict.INCONCLUSIVE, evidence=evidence)

    def _dead_elements(self) -> Check | NotRun:
        assert self.oracle is not None
        if not self.oracle.knows_only():
            return NotRun(name="dead elements", reason=NEEDS_ONLY)
        return self.judge.dead_elements()


def audit_frame(
    frame: Frame,
    oracle: Oracle | None = None,
    *,
    declared: Declared | None = None,
    seed: int = 0,
    progress: Callable[[str], None] = lambda name: None,
) -> Certificate:
    """Return the certificate of one backward pass; without an oracle, finiteness is all that can be judged.

    Raises:
        ArbiterError: the oracle died, hung or answered nonsense.
    """
    started = time.perf_counter()
    hearing = Hearing(frame, oracle, declared or Declared(), seed)
    hearing.hear(progress)
    not_run = [NotRun(name=name, reason=NEEDS_RUN) for name in CHECKS_OF_A_RUN]
    found = revision()
    return Certificate(
        step=frame.step,
        checks=tuple(hearing.checks),
        not_run=(*hearing.not_run, *not_run),
        shapes={tensor.name: tensor.shape for tensor in frame.tensors},
        dtypes={tensor.name: str(DTYPES[frame.dtype(f"param/{tensor.name}")]) for tensor in frame.tensors},
        seconds=round(time.perf_counter() - started, 3),
        seeds={"directions": seed},
        versions={"mothertongue-arbiter": version("mothertongue-arbiter")},
        commit=found.commit,
        dirty=found.dirty,
    )
