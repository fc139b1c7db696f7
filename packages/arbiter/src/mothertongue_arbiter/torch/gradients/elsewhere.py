"""Gradients away from the start, where what a small weight hides is seen.

Behind a projection that starts at zero nothing has a gradient, and a soft cap of tiny logits is linear: a
wrong backward there is off by less than any finite difference resolves. So tensors that are far smaller than
a layer needs are moved to its usual size, and the gradient is asked again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.torch.gradients.localisation import located
from mothertongue_arbiter.torch.run.backward import backward, real
from mothertongue_arbiter.torch.run.subject import ExactSubject
from mothertongue_arbiter.torch.run.witness import TorchWitness

SMALL = 0.25  # of the usual size: that of GPT-2 is about half of it, that of torch's own layers as well
GATE = 0.1  # to which a vector that is zero is moved; most are biases and gates
RANDOM_DIRECTIONS = 1


def also_elsewhere(subject: ExactSubject, check: Check, ask: Callable[[Judge], Check]) -> Check:
    """Return `check`, or what `ask` finds wrong where small tensors have their usual size."""
    small = _small(subject)
    if check.verdict != Verdict.PASS or not small:
        return check
    with subject.witness.moved_by(Direction(seed=subject.options.seed, scales=small), 1.0):
        exact = backward(subject.run, subject.batch, seed=subject.options.seed)
        witness = TorchWitness(
            subject.run, subject.batch, exact, uses=subject.mode.uses, seed=subject.options.seed
        )
        judge = Judge(witness, subject.declared, step=subject.step, random_directions=RANDOM_DIRECTIONS)
        if judge.finiteness(exact.loss).verdict != Verdict.PASS:
            return check  # no place to ask
        found = located(subject, ask(judge))
    if found.verdict != Verdict.FAIL:
        return check
    evidence = f"{found.evidence}; seen with {len(small)} small tensors at the usual size of a layer"
    return replace(found, evidence=evidence)


def _small(subject: ExactSubject) -> dict[str, float]:
    """Return the tensors that are much smaller than a layer needs, and by how much to move each element."""
    found = {}
    for name, parameter in subject.run.model.named_parameters():
        if not parameter.is_floating_point() or not parameter.numel() or subject.declared.is_frozen(name):
            continue
        size = float(real(parameter.detach()).square().mean().sqrt())
        inputs = parameter[0].numel() if parameter.dim() > 1 else 0
        usual = inputs**-0.5 if inputs else GATE
        if size < SMALL * usual if inputs else size == 0:
            found[name] = usual
    return found
