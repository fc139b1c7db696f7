"""The loss of a model that has learned nothing: ln V, read from the X-ray of the real loss."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.labels import plain
from mothertongue_arbiter.torch.run.batches import other_ids, with_ids
from mothertongue_arbiter.torch.run.subject import ExactSubject, Unavailable
from mothertongue_arbiter.torch.run.xray import Xray

LARGEST_ERROR = 0.10  # of what is expected; most healthy initialisations of the research zoo are within 3 %
# Of ln V. A healthy T5 begins at 1.2, embeddings of N(0, 1) in front of a small head at 1.25; logits of a
# standard deviation of 3 and more, which take training hundreds of steps to undo, begin beyond.
LARGEST_RATIO = 2.5
STANDARD_ERRORS = 3.0  # few positions are below the mean by chance
ADVICE = "`declared.initial_loss` would say what it should be"


@dataclass(frozen=True, kw_only=True)
class _Knowledge:
    """The cross-entropy in nats of the positions that learn, weighed as the loss weighs them."""

    mean: float
    error: float  # the standard error of the mean
    without_context: float  # of the mean prediction: what a bias alone knows


def initial_loss(subject: ExactSubject) -> Check:
    """An untrained model knows nothing, and is sure of nothing: its cross-entropy is about ln V.

    It is read from the gradient, in nats a token whatever the unit, the weights and the rest of the loss.
    """
    if subject.step > 0:
        raise Unavailable("only judged at step 0")
    if subject.declared.initial_loss is not None:
        return _as_declared(subject, subject.declared.initial_loss)
    xray = plain(subject)
    if not bool(xray.supervised.any()):
        raise Unavailable("no position is learned")
    vocabulary = subject.declared.vocabulary or xray.vocabulary
    found, should = _knowledge(subject, xray), math.log(vocabulary)
    evidence = f"{found.mean:.4f} nats a token, {should:.4f} expected (ln {vocabulary})"
    if should - found.mean > max(LARGEST_ERROR * should, STANDARD_ERRORS * found.error):
        return _too_low(subject, xray, found, evidence, should)
    if not found.mean <= LARGEST_RATIO * should:
        return _check(Verdict.FAIL, evidence, "the initialisation, or weights that were left unwritten")
    if found.mean > (1 + LARGEST_ERROR) * should:
        evidence += "; more than a small initialisation gives"
    return _check(Verdict.PASS, evidence)


def _as_declared(subject: ExactSubject, should: float) -> Check:
    loss = subject.exact.loss
    if subject.declared.normalisation == "sum":
        loss /= float(subject.xray.weights.sum())
    evidence = f"{loss:.4f} nats a token, {should:.4f} declared"
    if abs(loss - should) <= LARGEST_ERROR * abs(should):
        return _check(Verdict.PASS, evidence)
    low = "labels visible to the model, or the loss of another path"
    return _check(Verdict.FAIL, evidence, low if loss < should else "the initialisation")


def _too_low(subject: ExactSubject, xray: Xray, found: _Knowledge, evidence: str, should: float) -> Check:
    """Tell a label that the model sees from what weights know: a bias of frequencies, text read before."""
    if found.without_context - found.mean <= LARGEST_ERROR * should:
        return _check(Verdict.PASS, f"{evidence}; as a bias of the frequencies of tokens gives")
    if any(not parameter.requires_grad for parameter in subject.run.model.parameters()):
        raise Unavailable(f"{evidence}, but frozen weights may know this text; {ADVICE}")
    exchanged = _exchanged(subject, xray)
    if exchanged is None or exchanged > (1 - LARGEST_ERROR) * should:
        raise Unavailable(f"{evidence}: the weights seem to know this text already; {ADVICE}")
    return _check(Verdict.FAIL, evidence, "labels visible to the model: it only has to copy them")


def _knowledge(subject: ExactSubject, xray: Xray) -> _Knowledge:
    logits = subject.logits_of_loss.detach().double() / xray.temperature
    learned, labels = logits[xray.supervised].log_softmax(-1), xray.labels[xray.supervised]
    shares = xray.weights[xray.supervised] / xray.weights.sum()
    losses = -learned.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    mean = (shares * losses).sum()
    mean_prediction = (shares.unsqueeze(-1) * learned.exp()).sum(0)
    return _Knowledge(
        mean=float(mean),
        error=float((shares.square() * (losses - mean).square()).sum().sqrt()),
        without_context=float(-(shares * mean_prediction[labels].clamp(min=1e-300).log()).sum()),
    )


def _exchanged(subject: ExactSubject, xray: Xray) -> float | None:
    """Return the cross-entropy when each token is another one, as text and as label; None if it is not known.

    A copy stays a copy. What weights know of a text does not.
    """
    try:
        ids = subject.ids
        logits = subject.logits(with_ids(subject.batch, other_ids(ids)))
    except Unavailable:
        return None
    if logits.shape[:2] != xray.labels.shape:
        return None
    known = torch.unique(ids)
    exchange: Tensor = torch.arange(max(xray.vocabulary, int(known.max()) + 1), device=ids.device)
    exchange[known] = other_ids(known)
    asked = xray.supervised & torch.isin(xray.labels, known)
    if not bool(asked.any()):
        return None
    losses = -logits.double()[asked].log_softmax(-1).gather(-1, exchange[xray.labels[asked]].unsqueeze(-1))
    return float(losses.mean())


def _check(verdict: Verdict, evidence: str, cause: str = "") -> Check:
    return Check(name="initial loss", verdict=verdict, evidence=evidence, cause=cause)
