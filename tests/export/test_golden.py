from pathlib import Path

from mothertongue.golden import golden_findings, read_golden
from mothertongue.session import Session
from mothertongue_export.golden import CLEAR_CHOICE_NATS, GOLDEN_TOKENS, SET_TOKENS, write_golden
from mothertongue_export.pytorch import PyTorchModel


def test_a_bundle_repeats_its_golden_set(bundle: Path) -> None:
    golden = read_golden(bundle)
    assert sum(len(text.greedy_ids) for text in golden) > 20
    assert golden_findings(golden, Session.open(bundle)) == []


def test_golden_choices_are_those_that_pytorch_finds_clear(bundle: Path, tied: Path) -> None:
    """The bundle made them; PyTorch, which has other errors, must agree on each with much of the margin."""
    model = PyTorchModel.open(tied)
    for text in read_golden(bundle):
        logits = model.logits([[*text.prompt_ids, *text.greedy_ids]])[0]
        for row, token in zip(logits[len(text.prompt_ids) - 1 :], text.greedy_ids, strict=False):
            assert row.argmax() == token
            assert row[token] - sorted(row)[-2] > CLEAR_CHOICE_NATS / 2


def test_the_set_ends_when_it_is_long_enough_and_has_no_empty_texts(bundle: Path, tmp_path: Path) -> None:
    session = Session.open(bundle, threads=1)
    prompts = [text.prompt_ids for text in read_golden(bundle)]
    write_golden(tmp_path, session, prompts * 20)
    texts = read_golden(tmp_path)
    lengths = [len(text.greedy_ids) for text in texts]
    assert all(lengths)
    assert SET_TOKENS <= sum(lengths) < SET_TOKENS + GOLDEN_TOKENS
