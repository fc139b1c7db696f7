"""Audit a frame with its loss oracle: the same judgement as for a torch run, without any framework."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

import numpy as np

from mothertongue_arbiter.certificate import Certificate, Check, NotRun, Verdict
from mothertongue_arbiter.direction import Direction, scale_of, signs
from mothertongue_arbiter.frame import Frame
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.oracle import LossOracle
from mothertongue_arbiter.run import Declared

NEEDS_ORACLE = "no oracle; add --oracle 'COMMAND', a program that answers with the loss of moved parameters"
NEEDS_RUN = "a frame holds one backward pass; hand over a TrainingRun for this check"
CHECKS_OF_A_RUN = ("optimizer coverage", "labels", "causality", "gradient handed over", "movement")


class FrameWitness:
    """Answers from a frame and its oracle."""

    def __init__(self, frame: Frame, oracle: LossOracle | None, *, seed: int) -> None:
        self.seed = seed
        self._frame = frame
        self._oracle = oracle
        self._trainable = [tensor for tensor in frame.tensors if tensor.trainable]

    def names(self) -> list[str]:
        return [tensor.name for tensor in self._trainable]

    def scale(self, name: str) -> float:
        values = np.asarray(self._frame.parameter(name), dtype=np.float64)
        return scale_of(float(np.sqrt(np.mean(np.square(values))))) if values.size else 0.0

    def gradient_norm(self, name: str) -> float | None:
        gradient = self._frame.gradient(name)
        return None if gradient is None else float(np.linalg.norm(np.asarray(gradient, dtype=np.float64)))

    def slope(self, direction: Direction) -> tuple[float, float]:
        assert direction.along == "signs", "an oracle only knows hashed directions"
        predicted, squares = 0.0, 0.0
        for name, scale in direction.scales.items():
            gradient = self._frame.gradient(name)
            if gradient is not None:
                scaled = np.asarray(gradient, dtype=np.float64).ravel() * scale
                predicted += float(scaled @ signs(direction.seed, name, scaled.size))
                squares += float(scaled @ scaled)
        return predicted, squares**0.5

    def loss_at(self, direction: Direction, epsilon: float) -> float:
        assert self._oracle is not None
        return self._oracle.loss(
            direction.seed, {name: epsilon * scale for name, scale in direction.scales.items()}
        )


def audit_frame(
    frame: Frame,
    oracle: LossOracle | None = None,
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
    judge = Judge(FrameWitness(frame, oracle, seed=seed), declared or Declared(), step=frame.step)
    questions: dict[str, Callable[[], Check]] = {"finiteness": lambda: judge.finiteness(frame.loss)}
    not_run = [NotRun(name=name, reason=NEEDS_RUN) for name in CHECKS_OF_A_RUN]
    if oracle is None:
        not_run += [
            NotRun(name=name, reason=NEEDS_ORACLE) for name in ("gradient presence", "gradient values")
        ]
    else:
        questions |= {
            "loss of the oracle": lambda: judge.same_loss(frame.loss),
            "gradient presence": judge.presence,
            "gradient values": lambda: _unless_single(frame, judge.values(along_itself=False)),
        }
    checks = []
    for name, question in questions.items():
        progress(name)
        begin = time.perf_counter()
        checks.append(replace(question(), seconds=round(time.perf_counter() - begin, 3)))
    return Certificate(
        step=frame.step,
        checks=tuple(checks),
        not_run=tuple(not_run),
        shapes={tensor.name: tensor.shape for tensor in frame.tensors},
        dtypes={tensor.name: str(frame.parameter(tensor.name).dtype) for tensor in frame.tensors},
        seconds=round(time.perf_counter() - started, 3),
        seeds={"directions": seed},
        versions={"mothertongue-arbiter": version("mothertongue-arbiter")},
    )


def _unless_single(frame: Frame, check: Check) -> Check:
    """A float32 gradient can be proved wrong, never right."""
    gradients = [frame.gradient(tensor.name) for tensor in frame.tensors if tensor.trainable]
    exact = all(gradient is None or gradient.dtype == np.float64 for gradient in gradients)
    if exact or check.verdict != Verdict.PASS:
        return check
    evidence = f"{check.evidence}; but the frame holds float32 gradients: write it in float64"
    return replace(check, verdict=Verdict.INCONCLUSIVE, evidence=evidence)
