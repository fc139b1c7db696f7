import numpy as np
import pytest
import torch
from shuffled import END, ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.data.documents import documents_held
from mothertongue_arbiter.torch.run.subject import Unavailable

BEGIN, PAD, BETWEEN, TOKENS = 0, 39, 38, 16
LENGTHS = (9, 5, 12, 7, 15, 11, 5)  # 64 tokens: four rows of 16


def texts(step):
    """Documents without special tokens, and then their last one is END."""
    generator = np.random.default_rng(step)
    return [[*generator.integers(2, 38, length - 1).tolist(), END] for length in LENGTHS]


def packed(documents, rows=4, tokens=TOKENS):
    text = [token for document in documents for token in document][: rows * tokens]
    return torch.tensor(text + [PAD] * (rows * tokens - len(text))).reshape(rows, tokens)


def padded(documents, tokens=TOKENS):
    return torch.tensor([document + [PAD] * (tokens - len(document)) for document in documents])


def run_of(believed, batch):
    run = ZooRun()
    run.documents = lambda step, rank: believed(step)
    run.batch = lambda step: batch(believed(step))
    return run


def shifted(documents):
    rows = packed(documents, tokens=TOKENS + 1)
    return (rows[:, :-1], rows[:, 1:])


def carried_over(documents):
    return packed([documents[0][3:], *documents[1:]])


HEALTHY = {
    "packed": packed,
    "one a row": padded,
    "with a separator": lambda documents: packed([[*one, BETWEEN] for one in documents], rows=5),
    "cut at the end of the batch": lambda documents: packed(documents, tokens=TOKENS - 1),
    "begun in the batch before": carried_over,
    "with the labels apart": shifted,
}
FAULTS = {
    "a document dropped": (lambda docs: packed(docs[:2] + docs[3:]), "document 2 (12 tokens) is not in"),
    "the last one dropped": (lambda docs: packed(docs[:-1]), "document 6 (5 tokens) is not in"),
    "a document twice": (
        lambda docs: packed([*docs[:2], docs[1], *docs[2:]], rows=5),
        "document 1 is in the batch twice",
    ),
    "another order": (lambda docs: packed([docs[1], docs[0], *docs[2:]]), "stands before an earlier one"),
    "a document truncated": (
        lambda docs: packed([*docs[:2], docs[2][:8], *docs[3:]]),
        "is cut after 8 tokens",
    ),
    "all truncated": (lambda docs: padded([one[:10] for one in docs], 10), "is cut after 10 tokens"),
    "no end of text": (lambda docs: packed([one[:-1] for one in docs]), "lacks its last token 1"),
    "off by one": (lambda docs: packed([docs[0], *[one[1:] for one in docs[1:]]]), "lacks its first token"),
    "end of text twice": (
        lambda docs: packed([[*one, END] for one in docs], rows=5),
        "token 1 stands twice at the end",
    ),
    "one separator lost": (
        lambda docs: packed([[*docs[0], BETWEEN], docs[1], *[[*one, BETWEEN] for one in docs[2:]]], rows=5),
        "nothing between documents 1 and 2",
    ),
    "tokens of another row": (
        lambda docs: packed([docs[0], docs[1], docs[2][:6] + docs[4][6:12], *docs[3:]]),
        "is cut after 6 tokens",
    ),
}


@pytest.mark.parametrize("batch", HEALTHY.values(), ids=HEALTHY)
def test_documents_that_are_there_pass_in_any_layout(subject, batch):
    check = documents_held(subject(run_of(texts, batch)))
    assert check.verdict == "PASS", check
    assert "14 documents in 2 batches" in check.evidence


@pytest.mark.parametrize(("batch", "said"), FAULTS.values(), ids=FAULTS)
def test_documents_that_are_not_are_named(subject, batch, said):
    check = documents_held(subject(run_of(texts, batch)))
    assert check.verdict == "FAIL"
    assert said in check.evidence


def test_declared_padding_may_lie_between_the_documents_of_a_row(subject):
    run = run_of(texts, lambda documents: padded(documents, 20))
    run.declared = run.declared.__class__(pad_token=PAD)
    assert documents_held(subject(run)).verdict == "PASS"


@pytest.mark.parametrize(("cut", "verdict"), [(0, "PASS"), (2, "FAIL")])
def test_padding_may_be_the_end_of_text_as_well(subject, cut, verdict):
    def rows(documents):
        return torch.tensor([one[: len(one) - cut] + [END] * (20 - len(one) + cut) for one in documents])

    run = run_of(texts, rows)
    run.declared = run.declared.__class__(pad_token=END)
    assert documents_held(subject(run)).verdict == verdict


def test_a_begin_of_text_that_is_doubled_is_named(subject):
    run = run_of(
        lambda step: [[BEGIN, *one] for one in texts(step)],
        lambda documents: packed([[BEGIN, *one] for one in documents], rows=6),
    )
    assert "token 0 stands twice before" in documents_held(subject(run)).evidence


def test_the_documents_of_all_ranks_or_of_one_are_found(subject):
    run = ShuffledRun()
    assert documents_held(subject(run)).verdict == "PASS"
    run.batch = lambda step: run.micro_batches(step, 0)[0]
    assert documents_held(subject(run)).verdict == "PASS"
    run.documents = lambda step, rank: [[END, END, END, END, END]]
    assert documents_held(subject(run)).verdict == "FAIL"


def test_numbers_of_documents_are_no_documents(subject):
    with pytest.raises(Unavailable, match="number of each token's document"):
        documents_held(subject(ZooRun()))
