import re
from dataclasses import replace

import pytest
import torch
from shuffled import EPOCH_STEPS, RANKS, ROWS, TOKENS, VOCABULARY, ShuffledRun
from torch import nn
from zoo import ZooRun

from mothertongue_arbiter import Declared
from mothertongue_arbiter.torch.program.ranks import rank_data, replicas
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable


def checked(subject, check, run):
    with preserved(run):
        return check(subject(run))


class OneBucketUnreduced(ShuffledRun):
    def reduce(self):
        kept = [model.norm.weight.grad for model in self.replicas]
        super().reduce()
        for model, gradient in zip(self.replicas, kept, strict=True):
            model.norm.weight.grad = gradient


class ClippedByTheLocalNorm(ShuffledRun):
    def reduce(self):
        super().reduce()
        for rank, model in enumerate(self.replicas):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1 + 0.1 * rank)


class SeededByRank(ShuffledRun):
    def __init__(self, dropout=0.1):
        super().__init__(dropout)
        with torch.no_grad():
            self.replicas[1].head.weight.normal_(std=0.02)


class RateOfItsOwn(ShuffledRun):
    def __init__(self, dropout=0.1):
        super().__init__(dropout)
        self.optimizer[1].param_groups[0]["lr"] *= 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (OneBucketUnreduced, "after step 0 rank 1 differs.*in 1 of 6 tensors: norm.weight.*not reduced"),
        (ClippedByTheLocalNorm, "not reduced"),
        (SeededByRank, "before the first step.*head.weight.*another seed"),
        (RateOfItsOwn, "the same gradients, and optimizers that differ"),
    ],
)
def test_replicas_that_drift_are_named(subject, make, said):
    check = checked(subject, replicas, make())
    assert check.verdict == "FAIL"
    assert re.search(said, f"{check.evidence} {check.cause}")


def test_replicas_that_agree_pass_and_keep_their_optimizers(subject):
    run = ShuffledRun()
    before = [one.step for one in run.optimizer]
    assert checked(subject, replicas, run).verdict == "PASS"
    assert [one.step for one in run.optimizer] == before


def test_shards_are_no_replicas(subject):
    run = ShuffledRun()
    run.replicas = [run.model, nn.Linear(3, 3)]
    with pytest.raises(Unavailable, match="shards"):
        replicas(subject(run))
    run.replicas = [run.model]
    with pytest.raises(Unavailable, match="one model"):
        replicas(subject(run))


class SameRows(ShuffledRun):
    def rows(self, epoch, position, rank):
        return super().rows(epoch, position, 0)


class OneRowShared(ShuffledRun):
    def rows(self, epoch, position, rank):
        order = self.order(epoch)
        start = position * ROWS * RANKS + rank * (ROWS - 1)
        return self.corpus[order[start : start + ROWS]]


class OneRowDropped(ShuffledRun):
    def batch(self, step):
        everything = super().micro_batches(step, 0) + super().micro_batches(step, 1)
        return torch.cat(everything)

    def micro_batches(self, step, rank):
        return [part[: ROWS - rank] for part in super().micro_batches(step, rank)]


class UnevenMicroBatches(ShuffledRun):
    def micro_batches(self, step, rank):
        return super().micro_batches(step, rank) * (1 + rank)


class RealStepOfOneRank(ShuffledRun):
    """What it says of its data is right, and what it does is not."""

    def train_step(self, step):
        believed, self.rows = (
            self.rows,
            lambda epoch, position, rank: type(self).rows(self, epoch, position, 0),
        )
        super().train_step(step)
        self.rows = believed


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (SameRows, "24 of 24 rows of rank 1 are also rows of rank 0"),
        (OneRowShared, "8 of 24 rows of rank 1"),
        (OneRowDropped, "1 of 6 rows of the batch are on no rank"),
        (UnevenMicroBatches, r"\[1, 2\] micro-batches"),
        (RealStepOfOneRank, "rank 1 reads the rows of rank 0"),
    ],
)
def test_ranks_that_share_or_lose_rows_are_named(subject, make, said):
    check = checked(subject, rank_data, make())
    assert check.verdict == "FAIL"
    assert re.search(said, check.evidence)


class WithReplacement(ShuffledRun):
    """Rows of a small corpus are drawn anew for each rank: now and then two ranks have the same."""

    def rows(self, epoch, position, rank):
        generator = torch.Generator().manual_seed(epoch * 1000 + position * 10 + rank)
        return self.corpus[torch.randint(len(self.corpus), (ROWS,), generator=generator)]


class Counting(ShuffledRun):
    """Rows that count upwards from anywhere: only as many are different as there are tokens."""

    def rows(self, epoch, position, rank):
        generator = torch.Generator().manual_seed(epoch * 1000 + position * 10 + rank)
        start = torch.randint(VOCABULARY, (ROWS, 1), generator=generator)
        return (start + torch.arange(TOKENS)) % VOCABULARY


@pytest.mark.parametrize("make", [ShuffledRun, WithReplacement, Counting])
def test_rows_that_repeat_by_chance_do_not_alarm(subject, make):
    assert checked(subject, rank_data, make()).verdict == "PASS"


def test_the_micro_batches_of_one_rank_are_its_batch(subject):
    run = ZooRun(accumulation=2)
    assert "the micro-batches are the batch" in rank_data(subject(run)).evidence
    believed = run.micro_batches
    run.micro_batches = lambda step, rank: believed(step, rank)[:1]
    assert "1 micro-batches, 2 declared" in rank_data(subject(run)).evidence
    run.declared = Declared()
    assert "2 of 4 rows of the batch are on no rank" in rank_data(subject(run)).evidence


def test_ranks_that_share_padded_rows_are_seen(subject):
    def padded(step, rank):
        ids = torch.randint(1, 40, (3, 12), generator=torch.Generator().manual_seed(step))
        return [ids.index_fill(1, torch.arange(8, 12), 0)]

    run = ZooRun()
    run.declared = replace(run.declared, ranks=2)
    run.micro_batches = padded
    run.batch = lambda step: torch.cat([padded(step, 0)[0], padded(step, 1)[0]])
    check = rank_data(subject(run))
    assert check.verdict == "FAIL"
    assert "24 of 24 rows of rank 1" in check.evidence


def test_without_micro_batches_nothing_is_asked(subject):
    run = ShuffledRun()
    fixed = run.batch(0)
    run.batch = lambda step: fixed
    run.micro_batches = None
    with pytest.raises(Unavailable, match="micro_batches"):
        rank_data(subject(run))


def test_data_that_end_are_compared_as_far_as_they_go(subject):
    run = ShuffledRun()
    run.rebuild = None
    believed = run.micro_batches
    run.micro_batches = lambda step, rank: believed(step, rank) if step < EPOCH_STEPS else [][step]
    assert f"in {EPOCH_STEPS} steps" in rank_data(subject(run)).evidence
