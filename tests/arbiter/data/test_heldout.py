import math

import pytest
import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.data.heldout import evaluation, overlap
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable


def random_rows(seed, rows=4, tokens=24, vocabulary=48):
    return torch.randint(2, vocabulary, (rows, tokens), generator=torch.Generator().manual_seed(seed))


def run_of(training, held_out):
    run = ZooRun()
    run.batch = lambda step: {"input_ids": training(step)}
    run.eval_batches = lambda index: {"input_ids": held_out(index)}
    return run


def unseen(index):
    return random_rows(10_000 + index)


def half_a_row_of(step):
    """A packed row whose second part begins a training document at another place."""
    rows = unseen(step)
    rows[0, 4:] = random_rows(step)[1, :20]
    return rows


def templates(seed):
    """Rows that are almost the same sentence, with two words that change."""
    rows = random_rows(1, rows=1).repeat(4, 1)
    rows[:, [5, 15]] = random_rows(seed, tokens=2, vocabulary=12)
    return rows


def counting(seed):
    start = torch.randint(48, (4, 1), generator=torch.Generator().manual_seed(seed))
    return (start + torch.arange(24)) % 48


def with_a_licence(seed):
    """Text of its own, and the same eight tokens at the end of each row."""
    rows = random_rows(seed)
    rows[:, -8:] = random_rows(3, rows=1, tokens=8)
    return rows


def ragged(seed):
    """Rows of 3 to 24 tokens: nothing is told by the shortest ones."""
    rows = random_rows(seed)
    for row, tokens in enumerate((3, 9, 16, 24)):
        rows[row, tokens:] = 0
    return rows


def in_epochs(step):
    return ragged(step % 6)


LEAKS = {
    "the same rows": (random_rows, lambda index: random_rows(index), "held-out rows are training rows"),
    "one row of many": (
        random_rows,
        lambda index: torch.cat([unseen(index)[:3], random_rows(index + 9)[:1]]),
        "held-out rows are training rows",
    ),
    "some rows of many lengths, in each epoch": (
        in_epochs,
        lambda index: ragged(5 if index == 3 else 10_000 + index % 4),
        "held-out rows are training rows",
    ),
    "at another place of the row": (random_rows, half_a_row_of, "held-out rows are in the training text"),
}
SOUND = {
    "unseen rows of many lengths, in epochs": (in_epochs, lambda index: ragged(10_000 + index % 4)),
    "unseen rows": (random_rows, unseen),
    "templates": (templates, lambda index: templates(10_000 + index)),
    "rows that count": (counting, lambda index: counting(10_000 + index)),
    "a licence in every row": (with_a_licence, lambda index: with_a_licence(10_000 + index)),
}


@pytest.mark.parametrize(("training", "held_out", "said"), LEAKS.values(), ids=LEAKS)
def test_held_out_text_in_the_training_is_found(subject, training, held_out, said):
    check = overlap(subject(run_of(training, held_out)))
    assert check.verdict == "FAIL"
    assert said in check.evidence


@pytest.mark.parametrize(("training", "held_out"), SOUND.values(), ids=SOUND)
def test_text_that_repeats_itself_does_not_alarm(subject, training, held_out):
    check = overlap(subject(run_of(training, held_out)))
    assert check.verdict == "PASS", check


def test_held_out_batches_may_end_be_a_list_or_take_no_index(subject):
    run = run_of(random_rows, unseen)
    give = run.eval_batches
    run.eval_batches = lambda index: give(index) if index < 3 else [][index]
    assert "12 held-out rows" in overlap(subject(run)).evidence
    run.eval_batches = lambda index: [give(0), give(1)] if index == 0 else None
    assert "8 held-out rows" in overlap(subject(run)).evidence
    run.eval_batches = lambda: [give(0)]
    assert "4 held-out rows" in overlap(subject(run)).evidence
    run.eval_batches = [give(0)]
    assert "4 held-out rows" in overlap(subject(run)).evidence


class DividedByRanks(ShuffledRun):
    def evaluate(self):
        return super().evaluate() / 2


class DividedByWhatItReads(ShuffledRun):
    def eval_batches(self, index):
        return super().eval_batches(index % 2)  # goes on for ever

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            losses = [float(self.loss(self.model, self.eval_batches(index))) for index in range(5)]
        self.model.train()
        return sum(losses) / 5 / 5


class Summed(ShuffledRun):
    def evaluate(self):
        return torch.tensor(super().evaluate() * 2)


class InTrainingMode(ShuffledRun):
    def __init__(self, dropout=0.5):
        super().__init__(0.5)

    def evaluate(self):
        with torch.no_grad():
            return sum(float(self.loss(self.model, self.eval_batches(index))) for index in range(2)) / 2


class OnTrainingRows(ShuffledRun):
    def evaluate(self):
        with torch.no_grad():
            return {"val_loss": float(self.loss(self.model, self.batch(0)))}


class Perplexity(ShuffledRun):
    def evaluate(self):
        return math.exp(super().evaluate())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (DividedByRanks, "divided by 2 once more"),
        (DividedByWhatItReads, "divided by 5 once more, the batches that it reads"),
        (Summed, "a sum over 2 batches"),
        (InTrainingMode, "training mode"),
        (OnTrainingRows, "reads training rows"),
    ],
)
def test_an_evaluation_of_something_else_is_named(subject, make, said):
    run = make()
    with preserved(run):
        for step in range(4):  # at the beginning every loss is ln V
            run.train_step(step)
        check = evaluation(subject(run))
    assert check.verdict == "FAIL"
    assert said in check.cause


@pytest.mark.parametrize("make", [ShuffledRun, Perplexity])
def test_the_mean_loss_passes_in_nats_and_as_perplexity(subject, make):
    assert evaluation(subject(make())).verdict == "PASS"


def test_another_measure_is_not_compared(subject):
    run = ShuffledRun()
    run.evaluate = lambda: 0.25  # accuracy
    with pytest.raises(Unavailable, match="another measure"):
        evaluation(subject(run))
    run.evaluate = lambda: "fine"
    with pytest.raises(Unavailable, match="no number"):
        evaluation(subject(run))
    with pytest.raises(Unavailable, match="no `evaluate`"):
        evaluation(subject(ZooRun()))


def windows(stream, seed, tokens=12):
    starts = torch.randint(len(stream) - tokens, (8,), generator=torch.Generator().manual_seed(seed))
    return torch.stack([stream[start : start + tokens] for start in starts])


def test_windows_of_one_short_stream_are_no_reason_to_overlook_a_leak(subject):
    stream, other = random_rows(1, rows=1, tokens=4000)[0], random_rows(2, rows=1, tokens=600)[0]
    run = run_of(lambda step: windows(stream, step), lambda index: windows(stream, index))
    assert "are training rows" in overlap(subject(run)).evidence
    assert overlap(subject(run)).verdict == "FAIL"
    run = run_of(lambda step: windows(stream, step), lambda index: windows(other, index))
    assert overlap(subject(run)).verdict == "PASS"
