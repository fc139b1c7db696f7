"""Faults that a second author thought of, who had read the contract and not the checks.

Here they stand re-enacted in the subject, and the checks were repaired for what they had missed: the battery
now knows them as well as any other fault. The rate at which it found them unseen is in docs/arbiter.md.
"""

import torch
from torch import nn

from faults.fault import fault, sound
from faults.model import TOKENS, VOCABULARY
from faults.normalisation import plain_descent
from faults.subject import CLIP_NORM, ZooRun
from faults.text import END_OF_TEXT, FIRST_LETTER, ROWS

DROPOUT = sound(accumulation=2, dropout=0.1)
HANDED = "gradient handed over"
STREAM_TOKENS = 4000


def windows(seed):
    """Return rows cut anywhere from one stream of even letters, each closed as one document."""
    stream = torch.randint(
        FIRST_LETTER, VOCABULARY, (STREAM_TOKENS,), generator=torch.Generator().manual_seed(5)
    )
    starts = torch.randint(STREAM_TOKENS - TOKENS, (ROWS,), generator=torch.Generator().manual_seed(seed))
    ids = torch.stack([stream[start : start + TOKENS] for start in starts.tolist()])
    ids[:, -1] = END_OF_TEXT
    return ids, torch.zeros_like(ids)


@fault("second author: b5_ranks rankdata", "rank data", sound=sound(ranks=2, accumulation=2))
def g16_every_rank_reads_what_the_first_one_reads(run):
    """The batch is what the ranks really read, and so agrees with them."""
    batch, part_of_rank = run.batch, run.part_of_rank
    run.batch = lambda step: {
        name: value.repeat(run.ranks, 1) for name, value in part_of_rank(batch(step), 0).items()
    }
    run.documents = lambda step, rank: run.part_of_rank(run.batch(step), rank)["documents"]


@fault("second author: b1_nano lastmicro", HANDED, sound=DROPOUT)
def e15_only_the_last_micro_batch_counts(run):
    """The gradient is zeroed inside the loop, and dropout blurs what the whole step should have."""
    accumulate = run.accumulate

    def last(step, rank):
        run.micro_batches = lambda step, rank: ZooRun.micro_batches(run, step, rank)[-1:]
        accumulate(step, rank)
        del run.micro_batches

    run.accumulate = last


@fault("second author: b1_nano accum2", HANDED, sound=lambda: plain_descent(dropout=0.1))
def e16_divided_twice_by_the_number_of_micro_batches(run):
    accumulate = run.accumulate

    def divided(step, rank):
        accumulate(step, rank)
        for parameter in run.model.parameters():
            parameter.grad /= run.accumulation

    run.accumulate = divided


@fault("second author: b1_nano clipmicro", HANDED, sound=DROPOUT)
def c30_clipped_after_each_micro_batch(run):
    """The partial sum is clipped, so that the first micro-batch weighs less."""

    def accumulate(step, rank):
        for part in run.micro_batches(step, rank):
            (run.loss(run.model, part) / run.accumulation).backward()
            nn.utils.clip_grad_norm_(run.model.parameters(), CLIP_NORM / 2)

    run.accumulate = accumulate


@fault("second author: b1_nano evaldata", "held-out overlap")
def d24_held_out_windows_of_the_training_stream(run):
    """The split is at the wrong offset; the windows are many, and none comes twice by design."""
    run.batch = lambda step: run.collate(*windows(10 + step))
    run.documents = lambda step, rank: run.batch(step)["documents"]
    run.eval_batches = lambda index: run.collate(*windows(10 + index))


@fault("second author: b1_nano posclamp", "positions used", sound=sound(learned_positions=True))
def f23_later_positions_share_one_embedding(run):
    positions = run.model.operations.positions
    run.model.operations.positions = lambda documents: positions(documents).clamp(max=3)
