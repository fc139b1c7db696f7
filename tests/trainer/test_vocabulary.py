import dataclasses
import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import CheckFailed, DataError
from mothertongue.tokenizer import SPECIAL_TOKENS, Tokenizer
from mothertongue_trainer.recipe import TokenizerConfig
from mothertongue_trainer.vocabulary import (
    SPLIT_PATTERN,
    Passage,
    main_language,
    native_digits,
    sample_passages,
    sampling_rates,
    train_bpe,
    train_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(encoded_run) -> Tokenizer:
    return Tokenizer.open(encoded_run.folder / "tokenizer")


def pieces(text: str) -> list[str]:
    split = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    return [piece for piece, _ in split.pre_tokenize_str(text)]


def test_a_bangla_word_is_one_piece_with_its_signs() -> None:
    assert pieces("আমাদের দেশের মানুষ বাংলায় কথা বলে।") == [
        "আমাদের", " দেশের", " মানুষ", " বাংলায়", " কথা", " বলে", "।",
    ]  # fmt: skip


def test_each_digit_is_a_piece_of_its_own() -> None:
    assert pieces("১২+৩=১৫ 12") == ["১", "২", "+", "৩", "=", "১", "৫", " ", "1", "2"]


def test_a_joiner_starts_a_new_piece() -> None:
    # U+200D and U+200C are format characters, neither letters nor marks; nothing is lost, only cut.
    assert pieces("র\u200d্যাব") == ["র", "\u200d্যাব"]
    assert pieces("ক্\u200cষ") == ["ক্", "\u200cষ"]


def test_special_tokens_come_first_and_the_size_is_exact(tokenizer: Tokenizer) -> None:
    assert [tokenizer.special(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4, 5]
    assert tokenizer.vocabulary == 600


@given(text=st.text())
def test_any_text_survives_up_to_nfc(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    normal = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(ids) == normal
    assert sum(len(tokenizer.token_bytes(token)) for token in ids) == len(normal.encode())
    assert min(ids, default=6) >= 6  # no text is a special token


@pytest.mark.parametrize("text", ["র\u200d্যাব", "ক্\u200cষ", "<|end|>", "é", "ড়", "\0", "🙂‍↔️"])
def test_awkward_text_survives_up_to_nfc(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


def test_transformers_reads_the_same_tokenizer(encoded_run, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(encoded_run.folder / "tokenizer")
    text = "৭ + ৫ = কত? don't"
    assert theirs.encode(text) == tokenizer.encode(text)
    messages = [{"role": "user", "content": "৭ + ৫?"}]
    ours = ChatFormat.open(encoded_run.folder / "tokenizer").encode([Message("user", "৭ + ৫?")])
    assert theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == ours
    assert (theirs.bos_token_id, theirs.eos_token_id, theirs.pad_token_id) == (0, 4, 5)


def test_training_twice_gives_the_same_bytes(encoded_run, tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(encoded_run.folder / "corpus")
    train_tokenizer(encoded_run.recipe, tmp_path)
    for path in (encoded_run.folder / "tokenizer").iterdir():
        assert (tmp_path / "tokenizer" / path.name).read_bytes() == path.read_bytes()


def test_digits_of_the_language_replace_ascii_digits_in_chat(encoded_run) -> None:
    config = json.loads(
        (encoded_run.folder / "tokenizer" / "tokenizer_config.json").read_text(encoding="utf-8")
    )
    replacements = config["mothertongue"]["replacements"]
    assert [replacements[str(value)] for value in range(10)] == list("০১২৩৪৫৬৭৮৯")
    assert (replacements["“"], replacements['"'], replacements["’"]) == (' " ', ' " ', "'")


def test_the_chat_format_knows_how_many_questions_were_taught_at_once(encoded_run) -> None:
    assert ChatFormat.open(encoded_run.folder / "tokenizer").turns == 1


def test_a_language_that_writes_ascii_digits_keeps_them() -> None:
    english, bangla = Passage("in 1997 and 2001", "en", None), Passage("১৯৭১ সাল", "bn", None)
    assert native_digits([english, bangla], "en") == {}
    assert native_digits([english, bangla], "bn")["7"] == "৭"
    assert native_digits([Passage("no digits", "bn", None)], "bn") == {}


def test_the_main_language_is_that_of_the_mixture_not_of_the_files(encoded_run) -> None:
    assert main_language(encoded_run.recipe, encoded_run.folder) == "bn"
    mixture = {"গদ্য": 0.1, "english": 0.9, "chat": 0.1}
    corpus = dataclasses.replace(encoded_run.recipe.corpus, mixture=mixture)
    assert main_language(dataclasses.replace(encoded_run.recipe, corpus=corpus), encoded_run.folder) == "en"


def test_text_is_shared_out_by_the_mixture_as_far_as_it_lasts() -> None:
    shares = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert sampling_rates(shares, {"a": 100, "b": 100, "c": 400}, 40) == {"a": 0.1, "b": 0.1, "c": 0.05}
    # a has 10 of the 100 that it should give; b and c share the other 390 as 1 to 2.
    rates = sampling_rates(shares, {"a": 10, "b": 1000, "c": 1000}, 400)
    assert rates == {"a": 1.0, "b": pytest.approx(0.13), "c": pytest.approx(0.26)}
    assert sampling_rates(shares, {"a": 1, "b": 1, "c": 1}, 100) == dict.fromkeys("abc", 1.0)


def test_a_message_is_sampled_once_however_often_it_is_said(encoded_run) -> None:
    passages = [p.text for p in sample_passages(encoded_run.recipe, encoded_run.folder) if p.role]
    assert len(passages) == len(set(passages)) == 144 + 23  # questions, and the sums 0 to 22


def test_too_little_text_is_refused_with_both_sizes() -> None:
    with pytest.raises(DataError, match=r"the text fills \d+ of 600 entries; add text"):
        train_bpe([Passage("এক দুই এক দুই", "bn", None)], {}, vocabulary=600)


def test_an_unfair_tokenizer_is_refused_with_its_figures(encoded_run, tmp_path: Path) -> None:
    (tmp_path / "corpus").symlink_to(encoded_run.folder / "corpus")
    config = TokenizerConfig(vocabulary=600, minimum_characters_per_token={"bn": 9.0})
    with pytest.raises(
        CheckFailed, match=r"characters a token in 'bn' on held-out text, at least 9\.0 expected"
    ):
        train_tokenizer(dataclasses.replace(encoded_run.recipe, tokenizer=config), tmp_path)
    assert not (tmp_path / "tokenizer").exists()


def test_without_a_corpus_the_command_that_makes_it_is_named(encoded_run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mothertongue prepare"):
        train_tokenizer(encoded_run.recipe, tmp_path)


def test_a_tokenizer_that_cannot_be_written_is_an_error_of_the_system(
    encoded_run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def save(self, path: str) -> None:
            raise Exception("No space left on device (os error 28)")  # as the library does

    (tmp_path / "corpus").symlink_to(encoded_run.folder / "corpus")
    monkeypatch.setattr("mothertongue_trainer.vocabulary.train_bpe", lambda *args, **kwargs: Full())
    with pytest.raises(OSError, match=r"tokenizer\.json: cannot be written: No space left"):
        train_tokenizer(encoded_run.recipe, tmp_path)
    assert not (tmp_path / "tokenizer").exists()
