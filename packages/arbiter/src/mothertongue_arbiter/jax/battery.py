"""Audit the gradient of a JAX program: the same judgement as for a torch run.

    from mothertongue_arbiter.jax import audit_jax

    certificate = audit_jax(loss, params, batch)      # loss(params, batch) -> one number

`params` and `batch` are pytrees. The program is run in float64, whatever its own precision is, and only
inside this call. Where it rounds to lower precision on its way, an answer that needs more is INCONCLUSIVE,
and the place is named.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from mothertongue_arbiter.certificate import Certificate, Check, Finding, NotRun, Verdict
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.jax import probes
from mothertongue_arbiter.jax.tracing import Trace, trace
from mothertongue_arbiter.jax.trees import Parameters, float64_enabled, in_float64
from mothertongue_arbiter.jax.witness import JaxJudge, JaxWitness, gradient_of, scalar
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.run import Declared, declarations, matches
from mothertongue_arbiter.scope import revision

STIR = 0.1  # in units of the scale of each tensor; a projection that starts at zero hides no connection
NEEDS_FORWARD = "no `forward`; hand over forward(params, batch), the logits"
NEEDS_RUN = "a loss function shows no training step; hand over a TrainingRun for this check"
CHECKS_OF_A_RUN = ("optimizer coverage", "labels", "gradient handed over", "movement", "own precision")
ROUNDED = ("gradient presence", "gradient values", "dead elements")


def audit_jax(
    loss: Callable[[Any, Any], Any],
    params: Any,
    batch: Any,
    *,
    gradients: Callable[[Any, Any], Any] | None = None,
    declared: Declared | Mapping[str, Any] | None = None,
    forward: Callable[[Any, Any], Any] | None = None,
    step: int = 0,
    random_directions: int = 2,
    seed: int = 0,
) -> Certificate:
    """Return the certificate of `loss(params, batch)` and its gradient.

    `gradients(params, batch)` is the gradient as the program computes it, a tree like `params`; by default
    that of `jax.grad`. `forward(params, batch)` returns logits (B, T, V). `step` counts the optimizer steps
    that were done before: at 0 a tensor that cannot learn yet is forgiven. Random numbers belong into
    `batch`, as a key, so that the loss repeats.

    Raises:
        ArbiterError: the parameters, the loss or the gradients cannot be used at all.
    """
    started = time.perf_counter()
    parameters = Parameters(params)
    believed = declarations(SimpleNamespace(declared=declared))
    checks, not_run = [], [NotRun(name=name, reason=NEEDS_RUN) for name in CHECKS_OF_A_RUN]
    with float64_enabled():
        hearing = Hearing(
            loss, parameters, in_float64(batch), gradients, forward, believed, step, random_directions, seed
        )
        for name, question in hearing.questions().items():
            begin = time.perf_counter()
            answer = question()
            if isinstance(answer, NotRun):
                not_run.append(answer)
                continue
            checks.append(replace(answer, seconds=round(time.perf_counter() - begin, 3), name=name))
    found = revision()
    return Certificate(
        step=step,
        checks=tuple(checks),
        not_run=tuple(not_run),
        shapes=parameters.shapes,
        dtypes=parameters.dtypes,
        seconds=round(time.perf_counter() - started, 3),
        seeds={"directions": seed},
        device=str(jax.devices()[0]),
        versions={
            "mothertongue-arbiter": version("mothertongue-arbiter"),
            "jax": jax.__version__,
            "python": platform.python_version(),
        },
        commit=found.commit,
        dirty=found.dirty,
        notes=_unmatched(believed, parameters.names),
    )


class Hearing:
    """The questions about one loss, in the order in which they build on each other."""

    def __init__(
        self,
        loss: Callable[[Any, Any], Any],
        parameters: Parameters,
        batch: Any,
        gradients: Callable[[Any, Any], Any] | None,
        forward: Callable[[Any, Any], Any] | None,
        declared: Declared,
        step: int,
        random_directions: int,
        seed: int,
    ) -> None:
        self.batch = batch
        self.forward = forward
        self.seed = seed
        self.loss, gradient = _first_look(loss, gradients, parameters, batch)
        self._again = partial(_first_look, loss, gradients, parameters, batch)
        self._gradient = gradient
        self.trace: Trace = trace(loss, parameters, batch)
        self.witness = JaxWitness(loss, parameters, batch, gradient, order=self.trace.order, seed=seed)
        self.judge = JaxJudge(self.witness, declared, step=step, random_directions=random_directions)
        self.judge.rounds = self.rounds = bool(self.trace.casts or self.trace.problem)
        self._certain = False

    def questions(self) -> dict[str, Callable[[], Check | NotRun]]:
        judge = self.judge
        return {
            "same step twice": self._determinism,
            "finiteness": lambda: judge.finiteness(self.loss),
            "gradient presence": lambda: self._doubted(judge.presence()),
            "gradient values": lambda: self._doubted(judge.values()),
            "dead elements": lambda: self._doubted(judge.dead_elements()),
            "float64": self._float64,
            "causality": lambda: self._probe("causality", probes.causality),
            "independent rows": lambda: self._probe("independent rows", probes.independent_rows),
        }

    def _determinism(self) -> Check:
        """The same step twice gives the same gradient, bit for bit."""
        loss, again = self._again()
        bad = [
            name
            for name, one in self._gradient.items()
            if not np.array_equal(one, again[name], equal_nan=True)
        ]
        same = not bad and (loss == self.loss or loss != loss)
        return Check(
            name="same step twice",
            verdict=Verdict.PASS if same else Verdict.FAIL,
            evidence="the gradient repeats bit for bit"
            if same
            else f"another gradient: {named(bad) or 'loss'}",
            cause="" if same else "random numbers that do not come from the batch, or state outside",
        )

    def _doubted(self, check: Check) -> Check:
        """Say where lower precision prevents certainty."""
        if check.name == "gradient values":
            self._certain = check.verdict == Verdict.PASS
        if check.verdict != Verdict.INCONCLUSIVE or not self.trace.casts:
            return check
        return replace(check, evidence=f"{check.evidence}; lower precision: {named(self.trace.casts)}")

    def _float64(self) -> Check:
        """The loss stays in float64, or leaves it where that does not matter."""
        casts, problem = self.trace.casts, self.trace.problem
        if problem:
            evidence = f"the loss cannot be traced, so casts are not known: {problem}"
        elif casts:
            evidence = f"{len(casts)} casts to lower precision: {named(casts)}"
        else:
            evidence = "no lower casts"
        harmless = self._certain or not (casts or problem)
        return Check(
            name="float64",
            verdict=Verdict.PASS if harmless else Verdict.INCONCLUSIVE,
            evidence=evidence,
            findings=tuple(Finding(subject=cast, verdict="CAST") for cast in casts),
        )

    def _probe(self, name: str, probe: Callable[..., Check]) -> Check | NotRun:
        if self.forward is None:
            return NotRun(name=name, reason=NEEDS_FORWARD)
        declared = self.judge.declared
        if not (declared.causal if name == "causality" else declared.independent_rows):
            return NotRun(name=name, reason="declared otherwise")
        scales = {one: self.witness.scale(one) for one in self.witness.names()}
        stirred = self.witness.moved_by(Direction(seed=self.seed, scales=scales), STIR)
        try:
            return probe(self.forward, stirred, self.batch, rounds=self.rounds)
        except ArbiterError as reason:
            return NotRun(name=name, reason=str(reason))


def _first_look(
    loss: Callable[[Any, Any], Any],
    gradients: Callable[[Any, Any], Any] | None,
    parameters: Parameters,
    batch: Any,
) -> tuple[float, dict[str, Any]]:
    """Return loss and gradient as they are in float64; a program that fails here fails in training too."""
    try:
        value = float(scalar(loss(parameters.tree(), batch)))
        return value, gradient_of(loss, gradients, parameters, batch)
    except ArbiterError:
        raise
    except Exception as error:
        first_line = (str(error).splitlines() or [""])[0]
        raise ArbiterError(
            f"loss(params, batch): {type(error).__name__}: {first_line}; it must run in float64 to be audited"
        ) from error


def _unmatched(declared: Declared, names: list[str]) -> tuple[str, ...]:
    """Return a sentence for each declared pattern that no parameter has."""
    kinds = ("frozen", "trainable", "stop_gradients", "straight_through", "conditional")
    return tuple(
        f"declared.{kind}: no parameter is called {pattern!r}"
        for kind in kinds
        for pattern in getattr(declared, kind)
        if not any(matches(name, (pattern,)) for name in names)
    )
