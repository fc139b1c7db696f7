import pytest

from mothertongue.errors import DataError
from mothertongue.tokenizer import Tokenizer
from mothertongue_trainer.document import Document
from mothertongue_trainer.fairness import check_fairness, measure
from mothertongue_trainer.recipe import TokenizerConfig
from mothertongue_trainer.vocabulary import Passage, train_bpe


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Six special tokens, 256 bytes and four merges, two of which make ন out of its bytes E0 A6 A8."""
    return Tokenizer(train_bpe([Passage("নন নন নন ab ab", "bn", None)], {}, vocabulary=266))


def document(text: str, language: str) -> Document:
    return Document(id="x", language=language, component="heldout", text=text)


def test_figures_of_a_hand_counted_text(tokenizer: Tokenizer) -> None:
    # ন is one token; of ম (E0 A6 AE) no merge was learned: three pieces of a character.
    assert [tokenizer.token_bytes(token) for token in tokenizer.encode("নম")] == [
        "ন".encode(),
        b"\xe0",
        b"\xa6",
        b"\xae",
    ]
    bangla = measure(tokenizer, [document("নম ন", "bn")]).languages["bn"]
    assert (bangla.characters, bangla.bytes, bangla.words, bangla.tokens) == (4, 10, 2, 6)
    assert bangla.characters_per_token == pytest.approx(4 / 6)
    assert bangla.bytes_per_token == pytest.approx(10 / 6)
    assert bangla.tokens_per_word == pytest.approx(6 / 2)
    assert bangla.partial_percent == pytest.approx(100 * 3 / 6)
    assert bangla.as_dict()["partial_percent"] == bangla.partial_percent


def test_scripts_are_told_apart_within_a_language(tokenizer: Tokenizer) -> None:
    report = measure(tokenizer, [document("নন abc, ৭ (নন) я", "bn")])
    assert set(report.languages) == {"bn"}
    assert {name: f.words for name, f in report.scripts.items()} == {"Bengali": 2, "Latin": 1, "Cyrillic": 1}


def test_entries_that_no_text_used_are_counted(tokenizer: Tokenizer) -> None:
    used = set(tokenizer.encode("নন ab"))
    report = measure(tokenizer, [document("নন", "bn"), document("নন ab", "en")])
    assert report.unused_entries == 266 - 6 - len(used | set(tokenizer.encode("নন")))


def test_the_table_has_a_line_for_each_language_and_script(tokenizer: Tokenizer) -> None:
    lines = measure(tokenizer, [document("নন", "bn"), document("abc", "en")]).table().splitlines()
    assert [line.split()[0] for line in lines[1:-1]] == ["en", "bn", "Latin", "Bengali"]


def test_a_gate_for_a_language_without_held_out_text_is_an_error(tokenizer: Tokenizer) -> None:
    report = measure(tokenizer, [document("নন", "bn")])
    config = TokenizerConfig(vocabulary=266, minimum_characters_per_token={"as": 1.0})
    with pytest.raises(DataError, match=r"no held-out text in 'as'; languages found are bn"):
        check_fairness(report, config)
    check_fairness(report, TokenizerConfig(vocabulary=266, minimum_characters_per_token={"bn": 0.1}))
