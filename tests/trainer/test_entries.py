import sqlite3
from pathlib import Path

import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.entries import (
    Entry,
    clean_example,
    clean_glosses,
    clean_meaning,
    clean_word,
    read_entries,
    short_definition,
    short_sentence,
)


def entry(word: str = "জল", meanings: tuple[str, ...] = (), example: str = "") -> Entry:
    return Entry(word=word, part_of_speech="বিশেষ্য", meanings=meanings, glosses=("Water",), example=example)


@pytest.mark.parametrize(
    ("raw", "clean"), [("বা¹", "বা"), ("বা²", "বা"), ("অজ'", "অজ"), ("অক্ত`", "অক্ত"), (" নদী ", "নদী")]
)
def test_homograph_marks_leave_the_headword(raw: str, clean: str) -> None:
    assert clean_word(raw) == clean


def test_words_are_in_nfc() -> None:
    assert clean_word("ব\u09c7\u09be\u09df") == "ব\u09cb\u09af\u09bc"  # one vowel sign; য় stays decomposed


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        ("(আল.) পাজি।", "পাজি"),
        ("বিণ. শিক্ষাদাতা; অধ্যাপক।", "শিক্ষাদাতা; অধ্যাপক"),
        ("বিণ.", ""),
        ("১", ""),
        ("ভালো খবর (ভালো দিন)।", "ভালো খবর"),
        ("সহজবোধ্য। জল ওঠা /জল ওঠা/ ক্রিবি. ভেতরে জল প্রবেশ করা।", "সহজবোধ্য"),
        ("মধ্য- ভাগ, কেন্দ্রস্থল।", "মধ্যভাগ, কেন্দ্রস্থল"),
    ],
)
def test_marks_of_the_printed_page_leave_a_meaning(raw: str, clean: str) -> None:
    assert clean_meaning(raw) == clean


@pytest.mark.parametrize(
    ("raw", "glosses"),
    [
        ("River / Stream", ("River", "Stream")),
        ("City/Town", ("City", "Town")),
        ("Student (Male)", ("Student",)),
        ("Closed (Duplicate entry)", ("Closed",)),
        ("Don't (Negative imperative - dialect)", ()),
        ("Having gone / By", ()),
        ("I know", ()),
        ("To go", ("To go",)),
        ("", ()),
    ],
)
def test_glosses_are_short_alternatives(raw: str, glosses: tuple[str, ...]) -> None:
    assert clean_glosses(raw) == glosses


@pytest.mark.parametrize(
    ("raw", "word", "clean"),
    [
        ("নীল আকাশ এ সাদা মেঘ।", "আকাশ", "নীল আকাশে সাদা মেঘ।"),
        ("বস্তাটা তার ঘাড় এ চাপিয়ে দাও।", "ঘাড়", "বস্তাটা তার ঘাড়ে চাপিয়ে দাও।"),
        ("আকাশ এর রং নীল।", "আকাশ", "আকাশের রং নীল।"),
        ("জল ই জীবন।", "জল", "জলই জীবন।"),
        ("আমের আঁটি চুষা র মজাই আলাদা।", "চুষা", "আমের আঁটি চুষার মজাই আলাদা।"),
        ("তুমি চা বা¹ কফি খেতে পারো।", "বা", "তুমি চা বা কফি খেতে পারো।"),
        ("বেশ অকর্কশ ও মধুর ।", "অকর্কশ", "বেশ অকর্কশ ও মধুর।"),  # ও apart means "and"
        ("এই পাখি টি উড়ছে।", "আকাশ", "এই পাখি টি উড়ছে।"),  # another word is left as it is
    ],
)
def test_endings_join_their_word(raw: str, word: str, clean: str) -> None:
    assert clean_example(raw, word) == clean


def test_a_long_definition_loses_synonyms_and_never_a_part_of_its_sentence() -> None:
    synonyms = entry(meanings=("বৃহৎ জলধারা, স্রোতস্বিনী, তটিনী",))
    assert short_definition(synonyms, 100) == "বৃহৎ জলধারা, স্রোতস্বিনী, তটিনী"
    assert short_definition(synonyms, 25) == "বৃহৎ জলধারা, স্রোতস্বিনী"
    assert short_definition(synonyms, 15) == "বৃহৎ জলধারা"
    assert short_definition(synonyms, 5) == ""
    assert short_definition(entry(meanings=("স্বাদ, গন্ধ ও বর্ণহীন তরল",)), 12) == ""


def test_a_later_meaning_never_stands_for_the_first() -> None:
    assert short_definition(entry(meanings=("H2O নামের তরল", "অশ্রু")), 40) == ""
    assert short_definition(entry(), 40) == ""
    assert short_definition(entry(meanings=("জল",)), 40) == ""  # says nothing


def test_a_sentence_shows_its_word() -> None:
    assert short_sentence(entry(example="জলই জীবন।"), 40) == "জলই জীবন।"
    assert short_sentence(entry(example="পানিই জীবন।"), 40) == ""
    assert short_sentence(entry(example="জল বা পানি পান করো।"), 40) == ""  # explains instead of using it
    assert short_sentence(entry(example="জল (water) খাও।"), 40) == ""
    assert short_sentence(entry(example="জলই জীবন।"), 8) == ""


def test_what_is_no_dictionary_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with pytest.raises(DataError, match=r"a\.db: not a dictionary"):
        read_entries(path)
    path.write_bytes(b"no database at all, but long enough to be looked at")
    with pytest.raises(DataError, match="not a dictionary"):
        read_entries(path)


def test_missing_columns_become_empty(tmp_path: Path) -> None:
    path = tmp_path / "শব্দ ১.db"
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE words (id INTEGER PRIMARY KEY, word TEXT, pronunciation TEXT, etymology TEXT, "
            "part_of_speech TEXT, meanings TEXT, english_translation TEXT, examples TEXT)"
        )
        connection.execute("INSERT INTO words (word) VALUES ('যাওয়া')")
    connection.close()
    (read,) = read_entries(path)
    assert read == Entry(word="যাওয়া", part_of_speech="", meanings=(), glosses=(), example="")
