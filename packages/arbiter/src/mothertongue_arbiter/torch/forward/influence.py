"""Which token moves which logits: one token of a row is changed at a time, in float64."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.torch.forward.padding import real_positions
from mothertongue_arbiter.torch.run.backward import backward
from mothertongue_arbiter.torch.run.batches import POSITION_NAMES, named_tensor, other_ids
from mothertongue_arbiter.torch.run.subject import SAME, ExactSubject, Unavailable

LEAST_INFLUENCE = 1e-12  # relative; two sums of the same numbers in another order differ by less
FORWARDS = 8  # each asks about one token of every row
LEAST_PAIRS = 8  # of neighbours that change places
SHORT = 64  # tokens; a longer row costs more, and half as many are asked


@dataclass(frozen=True, kw_only=True)
class Influence:
    """What happens at each position of `row`, (T,), when only its token at `source` is another."""

    row: int
    source: int
    change: Tensor

    @property
    def earlier(self) -> float:
        return _largest(self.change[: self.source])

    @property
    def own(self) -> float:
        return float(self.change[self.source])

    @property
    def later(self) -> float:
        return _largest(self.change[self.source + 1 :])


def token_influence(subject: ExactSubject) -> Check:
    """A logit depends on its own token and on earlier ones, and on no later one."""
    found = influences(subject)
    if not any(bool(one.change.any()) for one in found):
        return _answer(Verdict.INCONCLUSIVE, "the logits do not depend on the tokens at all here")
    leaks = [one for one in found if one.earlier > SAME]
    if leaks and subject.declared.causal:
        leak = leaks[0]
        target = int((leak.change > SAME).nonzero()[0])
        evidence = f"position {target} changes by {leak.earlier:.1e} when only token {leak.source} is another"
        return _answer(
            Verdict.FAIL, evidence, "a causal mask that is off by one, or something mixes positions"
        )
    blind = [one.source for one in found if one.own < LEAST_INFLUENCE]
    if blind:
        evidence = f"the logits do not depend on the token of their own position: {_listed(blind)}"
        return _answer(Verdict.FAIL, evidence, "the tokens are shifted on their way into the model")
    asked = [one for one in found if _can_be_seen(subject, one)]
    unseen = [one.source for one in asked if max(one.later, one.earlier) < LEAST_INFLUENCE]
    if unseen and len(unseen) == len(asked):
        return _without_memory(subject)
    if unseen:
        evidence = f"no other position depends on the token at {_listed(unseen)}"
        return _answer(Verdict.FAIL, evidence, "a mask that hides tokens which nobody declared to be padding")
    return _answer(
        Verdict.PASS, f"{len(found)} tokens changed one by one: each moves its own logits and later ones only"
    )


def order_sensitivity(subject: ExactSubject) -> Check:
    """Two neighbours that change places change the logits of later positions, wherever they stand."""
    subject.need("forward")
    if not subject.declared.order_matters:
        raise Unavailable("declared as indifferent to order")
    ids, before = subject.ids, subject.standing
    pairs = [_pairs(subject, row) for row in range(len(ids))]
    if not any(pairs):
        raise Unavailable("no document of this batch has two different tokens and a third one after them")
    rounds = -(-LEAST_PAIRS // len(ids))
    moves: list[tuple[int, float]] = []
    for turn in range(rounds):
        swapped, other, asked = ids.clone(), ids.clone(), []
        for row, found in enumerate(pairs):
            if found:  # each row asks about another part of its length
                share = (turn * len(ids) + row) / (rounds * len(ids))
                first, end = found[int(share * len(found))]
                swapped[row, first : first + 2] = ids[row, first : first + 2].flip(0)
                other[row, first] = ids[row, first + 1]
                asked.append((row, first, slice(first + 2, end)))
        reached, moved = subject.change(before, other), subject.change(before, swapped)
        moves += [
            (first, float(moved[row, later].max()))
            for row, first, later in asked
            if float(reached[row, later].max()) > LEAST_INFLUENCE
        ]
    if not moves:
        raise Unavailable("no logit depends on an earlier token; see the token influence")
    name, still = "order sensitivity", [first for first, move in moves if move < LEAST_INFLUENCE]
    if still:
        evidence = "the logits stay when two earlier tokens change places"
        if len(still) < len(moves):
            evidence += f": those at {_listed([*still])} and after them, of {len(moves)} pairs"
        cause = "attention that has no positions, positions that are alike, or a sum over tokens"
        return Check(name=name, verdict=Verdict.FAIL, evidence=evidence, cause=cause)
    least = min(move for _, move in moves)
    evidence = f"later logits move by {least:.1e} or more when two earlier tokens change places"
    return Check(name=name, verdict=Verdict.PASS, evidence=f"{evidence}, in {len(moves)} places")


def influences(subject: ExactSubject) -> list[Influence]:
    """Change one token of every row at a time; all positions of short rows are asked, some of long ones."""
    subject.need("forward")
    before = subject.standing
    real = real_positions(subject)
    rows, length = before.shape[:2]
    if subject.ids.shape[1] < 2:
        raise Unavailable("sequences of one token")
    together = rows if subject.declared.independent_rows else 1
    forwards = FORWARDS if length <= SHORT else FORWARDS // 2
    count = min(length, together * forwards)
    sources = sorted({round(i * (length - 1) / max(1, count - 1)) for i in range(count)})
    found = []
    for start in range(0, len(sources), together):
        group = sources[start : start + together]
        changed = subject.ids.clone()
        for row, source in enumerate(group):
            changed[row, source] = other_ids(subject.ids)[row, source]
        # What happens at padding means nothing: where everything is masked, softmax spreads over all tokens.
        change = subject.change(before, changed) * real[:, :length]
        found += [
            Influence(row=row, source=source, change=change[row])
            for row, source in enumerate(group)
            if bool(real[row, source])
        ]
    if not found:
        raise Unavailable("every row is padding")
    return found


def _without_memory(subject: ExactSubject) -> Check:
    """No position sees another: by construction, or because what should look at others is dead."""
    gradients = backward(subject.run, subject.batch, seed=subject.options.seed).gradients
    dead = [
        name
        for name, gradient in gradients.items()
        if (gradient is None or not bool(gradient.any()))
        and not subject.declared.is_frozen(name)
        and not subject.declared.may_be_unused(name)
    ]
    if not dead:
        raise Unavailable(
            "no position depends on another token, and no tensor is unused: a model without memory"
        )
    evidence = f"no position depends on any token but its own, and nothing reaches {', '.join(dead[:3])}"
    return _answer(Verdict.FAIL, evidence, "attention that sees only itself, or whose output is dropped")


def _can_be_seen(subject: ExactSubject, one: Influence) -> bool:
    """Return whether the next position belongs to the same text, as far as anybody says."""
    following = one.source + 1
    if following >= len(one.change) or not bool(real_positions(subject)[one.row, following]):
        return False
    row = subject.ids[one.row]
    ends = set(subject.declared.must_learn)
    if int(row[one.source]) in ends or int(row[following]) in ends:
        return False
    positions = named_tensor(subject.batch, POSITION_NAMES)
    for numbers, step in ((subject.documents, 0), (positions, 1)):
        if numbers is None or numbers.dim() != 2 or len(numbers) <= one.row:
            continue
        if int(numbers[one.row, following]) - int(numbers[one.row, one.source]) != step:
            return False
    return True


def _pairs(subject: ExactSubject, row: int) -> list[tuple[int, int]]:
    """Return each position whose token and the next one differ, with the end of their document after them."""
    ids, documents = subject.ids[row].tolist(), subject.documents
    real, ends = real_positions(subject)[row].tolist(), set(subject.declared.must_learn)
    numbers = [0] * len(ids) if documents is None else documents[row].tolist()
    found, end = [], len(ids)
    for first in range(len(ids) - 1, -1, -1):
        following = first + 1
        if following < len(ids):
            together = real[following] and numbers[following] == numbers[first] and ids[first] not in ends
            end = end if together else following
        if real[first] and end > first + 2 and ids[first] != ids[following]:
            found.append((first, end))
    return found[::-1]


def _largest(values: Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _listed(positions: list[int]) -> str:
    return ", ".join(map(str, positions[:6])) + (" ..." if len(positions) > 6 else "")


def _answer(verdict: Verdict, evidence: str, cause: str = "") -> Check:
    return Check(name="token influence", verdict=verdict, evidence=evidence, cause=cause)
