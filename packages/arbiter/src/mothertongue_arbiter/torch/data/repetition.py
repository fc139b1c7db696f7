"""Data that come again: the batch of another step, or a row twice in one step.

An epoch repeats its rows by design, a small vocabulary by chance. So repetition is a fault only where it is
far more frequent than elsewhere in the same text, and not one epoch apart.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import combinations, permutations

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.data.likeness import LARGEST_CHANCE, Likeness, chance_of_as_many, equal_pairs
from mothertongue_arbiter.torch.data.rows import Rows, looked_at, ranks_of, rows_of_rank, shortest
from mothertongue_arbiter.torch.run.subject import Subject, Unavailable

LONGEST_LAG = 8  # steps between two equal batches of data loaders that draw the same random numbers

Pair = tuple[int, int]  # steps


def repetition(subject: Subject) -> Check:
    """Within an epoch no step has the batch of another, and no step has a row twice."""
    table = looked_at(subject)
    if len(table) < 2:
        raise Unavailable("the data end after one step")
    period = subject.declared.epoch_steps or _period(table)
    problem = _constant(subject, table) or _batches(subject, table, period) or _rows(subject, table, period)
    problem = problem or _replaced(subject, table)
    if problem:
        return Check(name="repetition", verdict=Verdict.FAIL, evidence=problem[0], cause=problem[1])
    rows = sum(len(one.keys) for one in table.values())
    evidence = f"{rows} rows in {len(table)} steps, no batch twice"
    if period is not None and period < len(table):
        evidence += f" within an epoch of {period} steps" + _same_order(table, period)
    return Check(name="repetition", verdict=Verdict.PASS, evidence=evidence)


def _content(rows: Rows) -> tuple[bytes, ...]:
    return tuple(sorted(rows.keys))  # the same rows in another order are the same batch


def _period(table: Mapping[int, Rows]) -> int | None:
    """Return after how many steps all batches come again in the same order; None if they do not."""
    contents = [_content(rows) for rows in table.values()]
    return next((n for n in range(2, len(contents) - 1) if contents[n:] == contents[:-n]), None)


def _same_order(table: Mapping[int, Rows], period: int) -> str:
    steps = list(table)
    same = all(table[step].keys == table[step - period].keys for step in steps[period:])
    return "; every epoch has the same order" if same else ""


def _constant(subject: Subject, table: Mapping[int, Rows]) -> tuple[str, str] | None:
    alike = len({_content(rows) for rows in table.values()}) == 1
    if not alike or subject.declared.epoch_steps == 1 or not hasattr(subject.run, "train_step"):
        return None
    return f"all {len(table)} steps have the same batch", "the data begin anew in every step"


def _batches(subject: Subject, table: Mapping[int, Rows], period: int | None) -> tuple[str, str] | None:
    pairs = [pair for pair in combinations(table, 2) if _same_epoch(pair, period)]
    equal = [(one, other) for one, other in pairs if _content(table[one]) == _content(table[other])]
    if not equal:
        return None
    lags = Counter(other - one for one, other in equal)
    if period is None:  # an epoch of unknown length may have ended anywhere: only neighbours tell
        possible = Counter(other - one for one, other in pairs)
        near = [lag for lag in lags if lag <= LONGEST_LAG and _is_often(lag, lags, possible)]
        equal = [(one, other) for one, other in equal if other - one in near]
    else:
        rows = min(len(one.keys) for one in table.values())
        if chance_of_as_many(len(equal), len(pairs) * _chance(table, pairs) ** rows) > LARGEST_CHANCE:
            return None
    if not equal:
        return None
    one, other = equal[0]
    evidence = f"step {other} has the batch of step {one}; {len(equal)} such pairs in {len(table)} steps"
    return evidence, "workers with the same random numbers, a replayed shard, or a sampler that begins anew"


def _is_often(lag: int, lags: Mapping[int, int], possible: Mapping[int, int]) -> bool:
    """Return whether batches `lag` steps apart are equal more often than those of larger distances."""
    elsewhere = sum(count for other, count in lags.items() if other > LONGEST_LAG)
    of_elsewhere = sum(count for other, count in possible.items() if other > LONGEST_LAG)
    expected = possible[lag] * (elsewhere + 3) / (of_elsewhere + 3)
    return chance_of_as_many(lags[lag], expected) <= LARGEST_CHANCE


def _rows(subject: Subject, table: Mapping[int, Rows], period: int | None) -> tuple[str, str] | None:
    """A row is twice in one step, more often than rows of different steps are equal."""
    steps = dict(table)
    if hasattr(subject.run, "micro_batches") and subject.declared.accumulation > 1:
        steps = {step: Rows.of(rows_of_rank(subject, step, 0)) for step in list(table)[:8]}
    twice = {step: _told_twice(rows) for step, rows in steps.items()}
    found = sum(twice.values())
    possible = sum(len(rows.keys) * (len(rows.keys) - 1) // 2 for rows in steps.values())
    pairs = [pair for pair in combinations(table, 2) if _same_epoch(pair, period)]
    if not found or chance_of_as_many(found, possible * _chance(table, pairs)) > LARGEST_CHANCE:
        return None
    step = next(step for step, count in twice.items() if count)
    evidence = f"step {step} has the same row twice; {found} such pairs in {len(steps)} steps"
    return evidence, "a row or a micro-batch that is taken again instead of the next one"


def _replaced(subject: Subject, table: Mapping[int, Rows]) -> tuple[str, str] | None:
    """Rows come more often in one epoch than in another: they are drawn with replacement.

    A row that the text has twice comes twice in each; only the last rows may be left out of one.
    """
    period = subject.declared.epoch_steps
    if period is None or ranks_of(subject) > 1:
        return None
    epochs: dict[int, list[int]] = {}
    for step in table:
        epochs.setdefault(step // period, []).append(step)
    counts = {
        epoch: Counter(key for step in steps for key in table[step].keys) for epoch, steps in epochs.items()
    }
    slack = max(len(rows.keys) for rows in table.values())  # left out where the rows do not fill a step
    for whole, other in permutations(counts, 2):
        if len(epochs[whole]) < period:
            continue
        known = sum(count for key, count in counts[other].items() if key in counts[whole])
        again = [key for key, count in counts[other].items() if count > max(1, counts[whole][key])]
        if len(again) <= slack or 2 * known <= counts[other].total():
            continue
        pairs = counts[other].total() * (counts[other].total() - 1) // 2
        text = Likeness.of(row for rows in table.values() for _, row in rows.each())
        expected = pairs * text.chance(shortest(table.values()))
        if chance_of_as_many(len(again) - slack, expected) <= LARGEST_CHANCE:
            evidence = f"{len(again)} rows come more often in epoch {other} than in epoch {whole}"
            return f"{evidence}, of {period} steps each", "rows that are drawn with replacement"
    return None


def _told_twice(rows: Rows) -> int:
    """Return how many pairs of rows of one step are equal; rows of one token alone are padding."""
    counts = Counter(key for key, _ in rows.each())
    return sum(count * (count - 1) // 2 for count in counts.values())


def _chance(table: Mapping[int, Rows], pairs: list[Pair]) -> float:
    """Return how likely two rows of different steps are equal: as counted, and as the text allows."""
    unlike = [(one, other) for one, other in pairs if _content(table[one]) != _content(table[other])]
    equal = sum(equal_pairs(table[one].keys, table[other].keys) for one, other in unlike)
    possible = sum(len(table[one].keys) * len(table[other].keys) for one, other in unlike)
    text = Likeness.of(row for rows in table.values() for _, row in rows.each())
    return max((equal + 3) / (possible + 3), text.chance(shortest(table.values())))


def _same_epoch(pair: Pair, period: int | None) -> bool:
    return period is None or pair[0] // period == pair[1] // period
