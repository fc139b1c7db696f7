import pytest
import torch
from shuffled import EPOCH_STEPS, VOCABULARY, ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter import Declared
from mothertongue_arbiter.torch.data.repetition import repetition
from mothertongue_arbiter.torch.run.subject import Unavailable


def run_of(rows, *, epoch_steps=None, **members):
    """A run whose batch of a step is `rows(step)`."""
    run = ZooRun()
    run.declared = Declared(epoch_steps=epoch_steps)
    run.batch = lambda step: {"input_ids": rows(step)}
    for name, member in members.items():
        setattr(run, name, member)
    return run


def random_rows(seed, rows=4, tokens=14):
    return torch.randint(2, VOCABULARY, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def shuffled_batches(step, count=7):
    """The same batches in each epoch, in another order."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(step // count))
    return random_rows(int(order[step % count]), rows=1)


def counting(step):
    start = torch.randint(VOCABULARY, (4, 1), generator=torch.Generator().manual_seed(step))
    return (start + torch.arange(14)) % VOCABULARY


def with_replacement(step):
    return random_rows(0, rows=30)[random_rows(step, rows=1, tokens=4)[0] % 30]


def text_of(step, *, rows=48, twice=0, replaces=False):
    """Four rows of one text, in another order in each epoch of twelve steps."""
    epoch, step = divmod(step, 12)
    text = random_rows(0, rows=rows - twice)
    text = torch.cat([text, text[:twice]])
    generator = torch.Generator().manual_seed(epoch)
    order = (
        torch.randint(rows, (rows,), generator=generator)
        if replaces
        else torch.randperm(rows, generator=generator)
    )
    return text[order[4 * step : 4 * step + 4]]


def padded(step):
    rows = random_rows(step)
    rows[2:] = 0
    return rows


HEALTHY = {
    "random rows": run_of(random_rows),
    "one row a batch": run_of(lambda step: random_rows(step, rows=1)),
    "a cycle of unknown length": run_of(lambda step: random_rows(step % 5)),
    "a cycle of declared length": run_of(lambda step: random_rows(step % 5), epoch_steps=5),
    "a declared epoch of one batch": run_of(lambda step: random_rows(0), epoch_steps=1),
    "batches shuffled anew": run_of(shuffled_batches),
    "rows that only count": run_of(counting),
    "rows of padding": run_of(padded),
    "rows drawn with replacement": run_of(
        lambda step: random_rows(0, rows=30)[random_rows(step, 1, 4)[0] % 30]
    ),
    "a shuffled epoch": ShuffledRun(),
    "an epoch of rows that the text has twice": run_of(lambda step: text_of(step, twice=20), epoch_steps=12),
    "an epoch without its last rows": run_of(lambda step: text_of(step, rows=51), epoch_steps=12),
}
FAULTS = {
    "two workers with one seed": (
        run_of(lambda step: random_rows(step // 2)),
        "step 1 has the batch of step 0",
    ),
    "the same, one row a batch": (
        run_of(lambda step: random_rows(step // 2, rows=1)),
        "step 1 has the batch of step 0",
    ),
    "one batch replayed": (
        run_of(lambda step: random_rows(4 if step == 5 else step), epoch_steps=100),
        "step 5 has the batch of step 4",
    ),
    "one batch for ever": (run_of(lambda step: random_rows(0)), "steps have the same batch"),
    "a row twice": (
        run_of(lambda step: random_rows(step)[[0, 1, 2, 2]]),
        "step 0 has the same row twice",
    ),
    "an epoch with replacement": (
        run_of(lambda step: text_of(step, replaces=True), epoch_steps=12),
        "rows come more often in epoch",
    ),
    "a shorter cycle than declared": (
        run_of(lambda step: random_rows(step % 5), epoch_steps=20),
        "step 5 has the batch of step 0",
    ),
}


@pytest.mark.parametrize("run", HEALTHY.values(), ids=HEALTHY)
def test_repetition_by_chance_or_by_epoch_passes(subject, run):
    check = repetition(subject(run))
    assert check.verdict == "PASS", check


@pytest.mark.parametrize(("run", "said"), FAULTS.values(), ids=FAULTS)
def test_data_that_come_again_are_named(subject, run, said):
    check = repetition(subject(run))
    assert check.verdict == "FAIL", check
    assert said in check.evidence


def test_a_micro_batch_that_is_taken_again_is_named(subject):
    run = run_of(random_rows)
    run.declared = Declared(accumulation=2)
    run.batch = random_rows
    run.micro_batches = lambda step, rank: [random_rows(step)[:2]] * 2
    assert "same row twice" in repetition(subject(run)).evidence


def test_an_epoch_without_shuffling_is_told_and_passes(subject):
    run = run_of(lambda step: random_rows(step % 5))
    assert "every epoch has the same order" in repetition(subject(run)).evidence
    assert f"an epoch of {EPOCH_STEPS} steps" in repetition(subject(ShuffledRun())).evidence


def test_one_step_of_data_tells_nothing(subject):
    run = ZooRun()
    believed = subject(run)
    run.batch = lambda step, first=believed.batch: first if step == 0 else [][step]
    with pytest.raises(Unavailable, match="after one step"):
        repetition(believed)
