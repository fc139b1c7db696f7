from pathlib import Path

import pytest

from mothertongue_trainer.corpus import prepare_corpus
from mothertongue_trainer.progress import progress_bar, silent
from mothertongue_trainer.tokens import encode_corpus
from mothertongue_trainer.vocabulary import train_tokenizer


def test_every_stage_says_what_it_does(encoded_run, tmp_path: Path) -> None:
    said: list[str] = []
    for stage in (prepare_corpus, train_tokenizer, encode_corpus):
        stage(encoded_run.recipe, tmp_path, progress=lambda what, done, total: said.append(what))
    assert {"reading sources", "learning merges", "encoding chat"} <= set(said)


def test_without_a_terminal_nothing_is_drawn(capfd: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with progress_bar(quiet=quiet) as progress:
            progress("counting", 1, 2)
            progress("counting", 2, None)
    silent("counting", 1, 2)
    assert capfd.readouterr() == ("", "")
