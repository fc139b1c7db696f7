"""Gradients that a compiler made, against those of the same program run line by line."""

from __future__ import annotations

import sys

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.judgement import named, off_by
from mothertongue_arbiter.torch.gradients.rounding import UNRESOLVED, OwnPrecision
from mothertongue_arbiter.torch.run.backward import backward, distance
from mothertongue_arbiter.torch.run.precision import line_by_line
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable


def compiled_gradients(subject: Subject, rounding: OwnPrecision) -> Check:
    """The gradient through `torch.compile` is that without it, up to the rounding of the run's precision."""
    if not is_compiling():
        raise Unavailable("nothing in this program was compiled by torch.compile")
    if subject.is_random:
        raise Unavailable("the loss draws random numbers (dropout), and a compiler draws others")
    compiled = subject.own
    with line_by_line():
        backward(subject.run, subject.next_batch, seed=subject.options.seed)
        eager = backward(subject.run, subject.batch, seed=subject.options.seed)
    names = [name for name, tolerance in rounding.tolerances.items() if tolerance <= UNRESOLVED]
    far = {name: distance(compiled.gradients, eager.gradients, name) for name in names}
    bad = [name for name in names if not far[name] <= rounding.tolerances[name]]
    bad.sort(key=lambda name: -far[name])
    if bad:
        return Check(
            name="compiled gradients",
            verdict=Verdict.FAIL,
            evidence=f"{len(bad)} of {len(names)} tensors have another gradient when compiled: {named(bad)}; "
            f"off by {far[bad[0]]:.1e} where rounding explains {rounding.tolerances[bad[0]]:.1e}",
            cause="the backward that torch.compile made; compare backend='aot_eager' with 'inductor'",
            findings=off_by(bad, far),
        )
    worst = max(far.values(), default=0.0)
    return Check(
        name="compiled gradients",
        verdict=Verdict.PASS if names else Verdict.INCONCLUSIVE,
        evidence=f"compiled and eager gradients within {worst:.1e}, by rounding of {rounding.dtype}",
    )


def is_compiling() -> bool:
    """Return whether torch.compile has made a graph in this program; without it, nothing is loaded."""
    if "torch._dynamo" not in sys.modules:
        return False
    from torch._dynamo.utils import counters

    return bool(counters["stats"]["unique_graphs"])
