"""Ranks: equal weights everywhere, and different rows for each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from itertools import combinations
from typing import Any

from torch import nn

from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.judgement import named
from mothertongue_arbiter.torch.data.likeness import LARGEST_CHANCE, Likeness, chance_of_as_many, equal_pairs
from mothertongue_arbiter.torch.data.reading import watched_reading
from mothertongue_arbiter.torch.data.rows import Rows, ranks_of, row_keys, rows_of_rank, shortest
from mothertongue_arbiter.torch.run.digest import digest
from mothertongue_arbiter.torch.run.fresh import fresh_run, replicas_of
from mothertongue_arbiter.torch.run.state import optimizers_of
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

STEPS = 3  # of all ranks together
DATA_STEPS = 8  # whose rows are compared between ranks

Digests = list[dict[str, bytes]]  # one mapping of parameter name to digest a rank


def replicas(subject: Subject) -> Check:
    """All ranks hold the same weights, before and after real steps."""
    subject.need("train_step")
    subject.need("replicas")
    models = replicas_of(subject.run)
    if len(models) < 2:
        raise Unavailable("`replicas` holds one model")
    shapes = [{name: one.shape for name, one in model.named_parameters()} for model in models]
    if any(one != shapes[0] for one in shapes):
        raise Unavailable("the ranks hold tensors of different names or shapes: shards, and no replicas")
    apart = _apart(_weights(models))
    for step in range(subject.step, subject.step + STEPS):
        with _watched_gradients(subject, models) as gradients:
            subject.run.train_step(step)  # type: ignore[attr-defined]
        drifted = _apart(_weights(models))
        if drifted:
            already = {rank: names for rank, names in drifted.items() if apart.get(rank)}
            when = "before the first step" if already else f"after step {step}"
            return _drifted(models, (already and apart) or drifted, when, _apart(gradients))
        apart = {}
    evidence = f"{len(shapes[0])} tensors equal bit for bit on {len(models)} ranks after {STEPS} steps"
    return Check(name="replicas", verdict=Verdict.PASS, evidence=evidence)


def _drifted(
    models: Sequence[nn.Module],
    drifted: Mapping[int, list[str]],
    when: str,
    unreduced: Mapping[int, list[str]],
) -> Check:
    rank, names = next(iter(drifted.items()))
    cause = "the ranks begin with weights of their own: another seed, and no broadcast"
    if when.startswith("after"):
        ungathered = [name for name in names if name in unreduced.get(rank, [])]
        cause = "the same gradients, and optimizers that differ: their state, rates or groups"
        if ungathered:
            cause = f"gradients that are not reduced over the ranks: {named(ungathered)}"
    first, other = dict(models[0].named_parameters()), dict(models[rank].named_parameters())
    far = max(float((first[name] - other[name]).detach().abs().max()) for name in names)
    return Check(
        name="replicas",
        verdict=Verdict.FAIL,
        evidence=f"{when} rank {rank} differs from rank 0 by up to {far:.1e} in {len(names)} of {len(first)} "
        f"tensors: {named(names)}",
        cause=cause,
        findings=tuple(Finding(subject=name, verdict="DRIFT", detail=f"rank {rank}") for name in names),
    )


def _weights(models: Sequence[nn.Module]) -> Digests:
    return [{name: digest(one) for name, one in model.named_parameters()} for model in models]


def _apart(digests: Digests) -> dict[int, list[str]]:
    """Return, for each rank that is not like rank 0, the names where it is not."""
    first = digests[0] if digests else {}
    unlike = {
        rank: [name for name in first if name in other and other[name] != first[name]]
        for rank, other in enumerate(digests)
    }
    return {rank: names for rank, names in unlike.items() if names}


@contextmanager
def _watched_gradients(subject: Subject, models: Sequence[nn.Module]) -> Iterator[Digests]:
    """Collect the gradients of each rank when its optimizer is called, if there is one optimizer a rank."""
    optimizers = [one for one in optimizers_of(subject.run) if hasattr(one, "step")]
    found: Digests = [{} for _ in models]
    if len(optimizers) != len(models):
        yield found
        return

    def watching(step: Any, rank: int) -> Any:
        @wraps(step)  # a scheduler recognises the method that it wrapped
        def watched(*args: Any, **kwargs: Any) -> Any:
            for name, one in models[rank].named_parameters():
                if one.grad is not None:
                    found[rank].setdefault(name, digest(one.grad))
            return step(*args, **kwargs)

        return watched

    shadowed = [vars(one).get("step") for one in optimizers]
    for rank, optimizer in enumerate(optimizers):
        optimizer.step = watching(optimizer.step, rank)
    try:
        yield found
    finally:
        for optimizer, step in zip(optimizers, shadowed, strict=True):
            if step is None:
                del optimizer.step
            else:
                optimizer.step = step


def rank_data(subject: Subject) -> Check:
    """Every rank trains on rows of its own, all together on the whole batch, in equally many parts."""
    ranks = ranks_of(subject)
    subject.need("micro_batches")
    table = _rows_by_rank(subject, ranks)
    problem = (
        _uneven(subject, table)
        or _shared(subject, table)
        or _incomplete(subject, table)
        or _misread(subject, table)
    )
    if problem:
        return Check(name="rank data", verdict=Verdict.FAIL, evidence=problem[0], cause=problem[1])
    rows = sum(len(one.keys) for step in table.values() for one in step)
    evidence = f"{rows} rows of {ranks} ranks in {len(table)} steps: none on two ranks of a step"
    if ranks == 1:
        evidence = f"{rows} rows in {len(table)} steps: the micro-batches are the batch"
    return Check(name="rank data", verdict=Verdict.PASS, evidence=evidence)


def _rows_by_rank(subject: Subject, ranks: int) -> dict[int, list[Rows]]:
    table: dict[int, list[Rows]] = {}
    for step in range(subject.step, subject.step + DATA_STEPS):
        try:
            table[step] = [Rows.of(rows_of_rank(subject, step, rank)) for rank in range(ranks)]
        except Unavailable:
            raise
        except Exception:
            if not table:
                raise
            break  # the data end here
    return table


Problem = tuple[str, str] | None  # evidence and cause


def _uneven(subject: Subject, table: Mapping[int, list[Rows]]) -> Problem:
    declared = subject.declared.accumulation
    for step, rows in table.items():
        counts = [len(one.ids) for one in rows]
        if len(set(counts)) > 1:
            evidence = f"step {step}: the ranks have {counts} micro-batches"
            return evidence, "a remainder that not every rank gets"
        if declared > 1 and counts[0] != declared:
            evidence = f"step {step}: {counts[0]} micro-batches, {declared} declared"
            return evidence, "dropped or repeated micro-batches"
    return None


def _shared(subject: Subject, table: Mapping[int, list[Rows]]) -> Problem:
    """Rows are on two ranks of the same step, more often than chance and repetition in the text explain."""
    ranks = range(len(next(iter(table.values()))))
    couples = list(combinations(ranks, 2))
    steps = list(table.values())
    together = {
        couple: sum(equal_pairs(rows[couple[0]].keys, rows[couple[1]].keys) for rows in steps)
        for couple in couples
    }
    possible = sum(len(rows[one].keys) * len(rows[other].keys) for rows in steps for one, other in couples)
    apart, of_apart = _across_steps(table, subject.declared.epoch_steps)
    found = sum(together.values())
    tokens = shortest(one for rows in steps for one in rows)
    text = Likeness.of(row for rows in steps for one in rows for _, row in one.each())
    elsewhere = (apart + 3) / (of_apart + 3)  # none in n looks: less than 3 / n, with 95 % confidence
    if not found or chance_of_as_many(found, possible * max(text.chance(tokens), elsewhere)) > LARGEST_CHANCE:
        return None
    one, other = max(together, key=lambda couple: together[couple])
    total = sum(len(rows[other].keys) for rows in steps)
    evidence = (
        f"{together[one, other]} of {total} rows of rank {other} are also rows of rank {one} in the same step"
    )
    return evidence, "the rank is not in the sampler or in its seed, or shards that overlap"


def _across_steps(table: Mapping[int, list[Rows]], epoch_steps: int | None) -> tuple[int, int]:
    """Return how many pairs of rows of different steps of one epoch are equal, and how many there are."""
    every = {step: [key for one in rows for key in one.keys] for step, rows in table.items()}
    pairs = [
        (every[one], every[other])
        for one, other in combinations(every, 2)
        if epoch_steps is None or one // epoch_steps == other // epoch_steps
    ]
    found = sum(equal_pairs(one, other) for one, other in pairs)
    return found, sum(len(one) * len(other) for one, other in pairs)


def _incomplete(subject: Subject, table: Mapping[int, list[Rows]]) -> Problem:
    """The ranks together hold every row of `batch(step)`, where that is the batch of all of them."""
    for step, rows in table.items():
        whole = Rows.of([subject.run.batch(step)])
        given = Counter(key for one in rows for key in one.keys)
        widths = {ids.shape[1] for one in (*rows, whole) for ids in one.ids}
        if len(widths) > 1 or sum(given.values()) > len(whole.keys) or not given:
            continue  # batch() is that of one rank
        missing = Counter(whole.keys) - given
        if missing and given & Counter(whole.keys):
            count = f"{sum(missing.values())} of {len(whole.keys)} rows of the batch are on no rank"
            return f"step {step}: {count}", "rows dropped or replaced where the batch is cut for the ranks"
    return None


def _misread(subject: Subject, table: Mapping[int, list[Rows]]) -> Problem:
    """In the real step each replica reads the rows that `micro_batches` names."""
    fresh = fresh_run(subject.run, seed=subject.options.seed)  # its data position is at the beginning
    if fresh is None or 0 not in table or not hasattr(fresh, "train_step"):
        return None
    models = replicas_of(fresh)
    if len(models) != len(table[0]):
        return None
    with watched_reading(models) as reading:
        fresh.train_step(0)
    for rank, rows in enumerate(table[0]):
        read, width = reading.ids[rank], rows.ids[0].shape[1]
        if not read or any(ids.shape[1] not in (width, width - 1) for ids in (*read, *rows.ids)):
            return None
        cut = read[0].shape[1]  # a model may be given all tokens but the last
        seen = {key for ids in read for key in row_keys(ids)}
        if _keys(rows, cut) <= seen:
            continue
        known = [(step, other) for step, every in table.items() for other in range(len(every))]
        twin = next((place for place in known if _keys(table[place[0]][place[1]], cut) <= seen), None)
        if twin is not None:
            evidence = f"in the real step 0 rank {rank} reads the rows of rank {twin[1]} in step {twin[0]}"
            return evidence, "the rank is not in the sampler or in its seed"
    return None


def _keys(rows: Rows, width: int) -> set[bytes]:
    return {key for ids in rows.ids for key in row_keys(ids[:, :width])}
