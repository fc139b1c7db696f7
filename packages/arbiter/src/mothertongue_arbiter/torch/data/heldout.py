"""The held-out part: none of it is in the training text, and its loss is what `evaluate` says."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.likeness import LARGEST_CHANCE, Likeness, chance_of_as_many, stretches
from mothertongue_arbiter.torch.data.reading import watched_reading
from mothertongue_arbiter.torch.data.rows import LOOKED_AT_SECONDS, Rows, batches_of, looked_at, row_keys
from mothertongue_arbiter.torch.run.backward import fix_random_numbers, scalar
from mothertongue_arbiter.torch.run.batches import token_ids
from mothertongue_arbiter.torch.run.listing import Ids
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

MOST_BATCHES = 32
TRAINING_STEPS = 256  # whose rows are compared, if a second allows
SHORTEST_STRETCH = 13  # tokens, as is usual for contamination (GPT-3, arXiv:2005.14165, appendix C)
RARE = 1e-2  # equal training rows that chance gives a held-out one; shorter rows do not tell
LEAKED = 0.5  # share of the stretches of a row that are also in the training text
LEAST_OTHERS = 8  # training rows that show how much of a row is usual in the others
SAME_LOSS = 1e-3  # relative: a mean of float32 or bfloat16 losses in another order


def overlap(subject: Subject) -> Check:
    """No row of the held-out part, and no long stretch of one, is in the training text."""
    held_out = {key: row for rows in _held_out_rows(subject) for key, row in rows.each()}
    read = [pair for rows in looked_at(subject, TRAINING_STEPS).values() for pair in rows.each()]
    training = dict(read)
    if not held_out or not training:
        raise Unavailable("no rows to compare")
    text = Likeness.of(training.values())
    evidence = f"{len(held_out)} held-out rows and {len(training)} training rows"
    same = held_out.keys() & training.keys()
    by_chance = {key: len(training) * text.chance(len(row)) for key, row in held_out.items()}
    rare = {key: expected for key, expected in by_chance.items() if expected <= RARE}
    again = len(held_out) * _share_read_again([key for key, _ in read])
    if same and (
        chance_of_as_many(len(same & rare.keys()), sum(rare.values())) <= LARGEST_CHANCE
        or chance_of_as_many(len(same), again) <= LARGEST_CHANCE
    ):
        return _leak(f"{len(same)} of {len(held_out)} held-out rows are training rows")
    alike = f"{len(same)} are the same, as chance has it" if same else "none is the same"
    tokens = _telling_length(text, held_out, training)
    if tokens is None:
        return Check(
            name="held-out overlap",
            verdict=Verdict.PASS,
            evidence=f"{evidence}: {alike}; this text repeats too much to tell by shorter stretches",
        )
    leaked, usual = _leaked_rows(list(held_out.values()), list(training.values()), tokens)
    if leaked and (usual == 0 or chance_of_as_many(len(leaked), usual * len(held_out)) <= LARGEST_CHANCE):
        return _leak(
            f"{len(leaked)} of {len(held_out)} held-out rows are in the training text: up to "
            f"{max(leaked):.0%} of the stretches of {tokens} tokens"
        )
    return Check(
        name="held-out overlap",
        verdict=Verdict.PASS,
        evidence=f"{evidence}: {alike}, none shares half of its stretches of {tokens} tokens",
    )


def _share_read_again(keys: list[bytes]) -> float:
    """Return how many of the last quarter of the training rows are among the others: 3 more, to be sure."""
    last = len(keys) // 4
    earlier = set(keys[: len(keys) - last])
    return (sum(key in earlier for key in keys[len(keys) - last :]) + 3) / (last + 3)


def _leak(evidence: str) -> Check:
    cause = "a split after shuffling or after packing, or documents that occur twice in the corpus"
    return Check(name="held-out overlap", verdict=Verdict.FAIL, evidence=evidence, cause=cause)


def _held_out_batches(subject: Subject) -> list[Any]:
    """Return the batches of `eval_batches`, until it has no more or a second is over."""
    give, like = subject.need("eval_batches"), subject.run.batch(subject.step)
    if not callable(give):
        return batches_of(give, like)[:MOST_BATCHES]
    found: list[Any] = []
    begun = time.perf_counter()
    for number in range(MOST_BATCHES):
        try:
            given = give(number)
        except TypeError:
            return batches_of(give(), like)[:MOST_BATCHES]
        except Exception:
            if not number:
                raise
            break  # no more
        batches = batches_of(given, like)
        if not batches or time.perf_counter() - begun > LOOKED_AT_SECONDS:
            break
        found += batches
    return found


def _held_out_rows(subject: Subject) -> list[Rows]:
    return [Rows.of([batch]) for batch in _held_out_batches(subject)]


def _telling_length(text: Likeness, held_out: dict[bytes, Ids], training: dict[bytes, Ids]) -> int | None:
    """Return how many tokens must be equal before chance is excluded; None if no row is so long."""
    longest = int(np.median([len(row) for row in (*held_out.values(), *training.values())]))
    pairs = sum(map(len, held_out.values())) * sum(map(len, training.values()))
    lengths = range(min(SHORTEST_STRETCH, longest), longest + 1)
    return next((n for n in lengths if pairs * text.chance(n) <= LARGEST_CHANCE), None)


def _leaked_rows(held_out: list[Ids], training: list[Ids], tokens: int) -> tuple[list[float], float]:
    """Return the shares of the held-out rows that are leaked, and the share of training rows that are so.

    A quarter of the training rows, compared with the others, tells how much this text repeats by itself.
    """
    known = np.unique(np.concatenate([stretches(row, tokens) for row in training]))
    shares = [_share(row, known, tokens) for row in held_out]
    some = training[: len(training) // 4]
    if len(some) < LEAST_OTHERS:
        return [share for share in shares if share > LEAKED], 0.0
    others = np.unique(np.concatenate([stretches(row, tokens) for row in training[len(some) :]]))
    usual = sum(_share(row, others, tokens) > LEAKED for row in some)
    return [share for share in shares if share > LEAKED], usual / len(some)


def _share(row: Ids, known: npt.NDArray[np.uint64], tokens: int) -> float:
    """Return the share of the stretches of `row` that are among `known`, which are sorted."""
    asked = stretches(row, tokens)
    if not len(asked) or not len(known):
        return 0.0
    nearest = known[np.searchsorted(known, asked).clip(max=len(known) - 1)]
    return float((nearest == asked).mean())


def evaluation(subject: Subject) -> Check:
    """What `evaluate()` returns is the mean loss of the held-out batches, without dropout."""
    evaluate = subject.need("evaluate")
    if not callable(evaluate):
        raise Unavailable("`evaluate` is no function")
    batches = _held_out_batches(subject)
    fix_random_numbers(subject.options.seed)
    with watched_reading([subject.run.model]) as reading:
        said = _number(evaluate())
    problem = _read_training_rows(subject, reading.ids[0], batches)
    means = _means(subject, batches)
    ours = means[-1]
    if problem is None and not any(
        _same(said, one) for mean in means for one in (mean, math.exp(mean), mean / math.log(2))
    ):
        problem = _explained(subject, said, means, batches=len(batches), read=len(reading.ids[0]))
        if problem is None:
            raise Unavailable(f"`evaluate()` says {said:.4g}, another measure than the mean loss {ours:.4g}")
    evidence = f"`evaluate()` says {said:.4f}, the mean loss of {len(batches)} held-out batches is {ours:.4f}"
    return Check(
        name="evaluation",
        verdict=Verdict.FAIL if problem else Verdict.PASS,
        evidence=evidence,
        cause=problem or "",
    )


def _number(value: Any) -> float:
    """Return the loss in what `evaluate` returned: a number or a tensor, alone or in a mapping or tuple."""
    if isinstance(value, dict):
        names = [name for name in value if "loss" in str(name)] or list(value)
        value = value[names[0]] if names else None
    if isinstance(value, list | tuple) and value:
        value = value[0]
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if not isinstance(value, int | float) or not math.isfinite(value):
        raise Unavailable("`evaluate()` returns no number")
    return float(value)


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


def _means(subject: Subject, batches: Sequence[Any]) -> list[float]:
    """Return the mean loss of the first 1, 2, ... batches, by batch and by token, that of all last."""
    if not batches:
        raise Unavailable("`eval_batches` gives no batch")
    model = subject.run.model
    with _evaluating(model):
        losses = np.array([float(scalar(subject.run.loss(model, batch))) for batch in batches])
    sizes = np.array([1 if (ids := token_ids(batch)) is None else ids.numel() for batch in batches])
    counts = np.arange(1, len(losses) + 1)
    by_token = (losses * sizes).cumsum() / sizes.cumsum()
    return [*by_token.tolist(), *(losses.cumsum() / counts).tolist()]


def _same(one: float, other: float) -> bool:
    return abs(one - other) <= SAME_LOSS * abs(other)


def _explained(
    subject: Subject, said: float, means: Sequence[float], *, batches: int, read: int
) -> str | None:
    """Name the mistake that makes `said` of the right loss, if one is known; `read` batches were read."""
    declared = subject.declared
    parts = {"the accumulation": declared.accumulation, "the ranks": declared.ranks, "the batches": batches}
    parts |= {"the batches that it reads": read}
    ids = token_ids(subject.batch)
    if ids is not None:
        parts |= {"the rows": len(ids), "the tokens of a row": ids.shape[1]}
    for what, count in parts.items():
        if count > 1 and any(_same(said * count, mean) for mean in means):
            return f"the loss is divided by {count} once more, {what}"
    if batches > 1 and declared.normalisation != "sum" and _same(said, means[-1] * batches):
        return f"a sum over {batches} batches, no mean"
    training = _means(subject, [subject.run.batch(subject.step + number) for number in range(4)])
    if any(_same(said, mean) for mean in training):
        return "it is the loss of training rows"
    evaluate = subject.need("evaluate")
    values = []
    for seed in (1, 2):
        fix_random_numbers(seed)
        values.append(_number(evaluate()))
    return (
        "it is evaluated in training mode: dropout changes it each time" if values[0] != values[1] else None
    )


def _read_training_rows(subject: Subject, read: Sequence[Tensor], batches: Sequence[Any]) -> str | None:
    """Return what is wrong if `evaluate` reads rows of the training and none of the held-out part."""
    keys = {key for ids in read for key in row_keys(ids)}
    width = {ids.shape[1] for ids in read}
    held_out = {key for batch in batches for key in _cut_keys(batch, width)}
    training = {key for step in range(8) for key in _cut_keys(subject.run.batch(subject.step + step), width)}
    if keys and keys <= training and not keys & held_out:
        return "it reads training rows, and none of `eval_batches`"
    return None


def _cut_keys(batch: Any, widths: set[int]) -> set[bytes]:
    ids = token_ids(batch)
    return set() if ids is None else {key for width in widths for key in row_keys(ids[:, :width])}
