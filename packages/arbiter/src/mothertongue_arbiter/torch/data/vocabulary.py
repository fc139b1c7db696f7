"""The token ids of the data: all in the vocabulary, and those that must be learned are there."""

from __future__ import annotations

import torch

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.rows import looked_at
from mothertongue_arbiter.torch.run.backward import backward
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable
from mothertongue_arbiter.torch.run.xray import captured_logits, xray

TELLING_ENDS = 8  # documents that end within rows before a missing end-of-text token is a fault


def vocabulary(subject: Subject) -> Check:
    """Every token id has a row of logits, and a token that must be learned occurs where documents end."""
    entries = subject.vocabulary
    if entries is None:
        raise Unavailable("neither `declared.vocabulary` nor `forward` says how many entries there are")
    table = looked_at(subject)
    ids = torch.cat([one.flatten().long() for rows in table.values() for one in rows.ids])
    real = ids[ids != subject.declared.pad_token] if subject.declared.pad_token is not None else ids
    low, high = (int(real.min()), int(real.max())) if len(real) else (0, 0)
    if low < 0 or high >= entries:
        evidence = f"token ids from {low} to {high}, the vocabulary has {entries} entries"
        return _failed(evidence, "another tokenizer than the model's, or labels given as inputs")
    touched = len(torch.unique(ids)) / entries
    occurring = set(ids.tolist())
    missing = [token for token in subject.declared.must_learn if token not in occurring]
    if missing:
        learned = _learned(subject)
        missing = [token for token in missing if token not in learned]
    documents = subject.documents
    ends = 0 if documents is None else int((documents[:, 1:] != documents[:, :-1]).sum())
    if missing and ends >= TELLING_ENDS:
        evidence = (
            f"token {missing[0]} is nowhere in {ids.numel()} tokens, and {ends} documents end in one batch"
        )
        return _failed(evidence, "the end-of-text token is not added, or lost on the way to the batch")
    evidence = f"{ids.numel()} tokens of {len(table)} steps touch {touched:.0%} of {entries} entries"
    if missing:
        evidence += f"; token {missing[0]} did not occur"
    return Check(name="vocabulary", verdict=Verdict.PASS, evidence=evidence)


def _learned(subject: Subject) -> set[int]:
    """Return the labels of the loss: a text may end in a label that is never an input."""
    with captured_logits(subject.vocabulary) as found:
        backward(subject.run, subject.run.batch(subject.step), seed=subject.options.seed)
    if not found or found[-1].dim() != 3:
        return set()
    seen = xray(found[-1])
    return set(seen.labels[seen.supervised].tolist())


def _failed(evidence: str, cause: str) -> Check:
    return Check(name="vocabulary", verdict=Verdict.FAIL, evidence=evidence, cause=cause)
