from mothertongue_trainer.entries import Entry
from mothertongue_trainer.holdout import is_held_out
from mothertongue_trainer.numerals import read_numerals
from mothertongue_trainer.recipe import DictionaryConfig
from mothertongue_trainer.words import EnglishWord, WordList, read_checked_words, split_words

CHECKED = read_checked_words()
TAUGHT_BY_HAND = sum(bool(line.senses) for line in CHECKED.values())


def entry(word: str, *glosses: str, example: str = "", meaning: str = "") -> Entry:
    meanings = (meaning,) if meaning else ()
    return Entry(word=word, part_of_speech="", meanings=meanings, glosses=glosses, example=example)


def split(entries: list[Entry], *, own_words: int, unlearned: int = 100, percent: float = 1e-9) -> WordList:
    """Split so that `own_words` of `entries` join the words checked by hand."""
    config = DictionaryConfig(core_words=TAUGHT_BY_HAND + own_words, unlearned_words=unlearned)
    return split_words(entries, config, heldout_percent=percent)


def added(words: WordList) -> list[str]:
    return [word.word for word in words.core[TAUGHT_BY_HAND:]]


def test_hundreds_of_everyday_words_are_checked_by_hand() -> None:
    assert TAUGHT_BY_HAND > 500
    assert CHECKED["রাজা"].senses == ("king",)
    assert CHECKED["মা"].senses == ("mother",)
    assert CHECKED["বই"].senses == ("book",)
    assert CHECKED["পা"].senses == ("leg", "foot")
    assert CHECKED["তারা"].senses == ("star", "they")  # both senses of a homograph are accepted
    assert CHECKED["গেছে"].senses == ()  # only a form: never taught
    for line in CHECKED.values():
        assert line.word == line.word.strip()
        assert all(sense == sense.strip() and sense.isascii() for sense in line.senses), line
        assert len(line.definition) <= 45, line
        assert line.sentence == "" or line.sentence[-1] in "।?!", line


def test_frequent_words_come_first_and_endings_count_for_their_stem() -> None:
    entries = [
        entry("বিরল", "Rare", example="বিরল।"),
        entry("পেয়ালা", "Cup", example="পেয়ালার চা, পেয়ালাতে চা।"),
        entry("ঝিনুক", "Oyster", example="ঝিনুক।"),
    ]
    assert added(split(entries, own_words=1)) == ["পেয়ালা"]
    assert added(split(entries, own_words=2)) == ["পেয়ালা", "বিরল"]  # a tie: the shorter word


def test_long_and_missing_glosses_are_not_taught() -> None:
    entries = [
        entry("অমুক", "A gloss of many words", example="অমুক অমুক"),
        entry("তমুক"),
        entry("ঝিনুক", "Oyster"),
    ]
    assert added(split(entries, own_words=5)) == ["ঝিনুক"]


def test_a_mere_form_of_a_frequent_word_is_not_taught() -> None:
    entries = [
        entry("পেয়ালা", "Cup", example="পেয়ালা।"),
        entry("ঝিনুক", "Oyster", example="ঝিনুক, ঝিনুক, ঝিনুক।"),
        entry("ঝিনুকে", "In an oyster", example="ঝিনুকে।"),
    ]
    assert added(split(entries, own_words=5)) == ["ঝিনুক", "পেয়ালা"]


def test_glosses_lose_their_capital_and_names_keep_it() -> None:
    entries = [entry("ঝিনুক", "Oyster"), entry("পূজাপর্ব", "Durga Puja"), entry("নেপালদেশ", "Nepal")]
    senses = {word.word: word.senses for word in split(entries, own_words=3).core}
    assert senses["ঝিনুক"] == ("oyster",)
    assert senses["পূজাপর্ব"] == ("Durga Puja",)
    assert senses["নেপালদেশ"] == ("Nepal",)


def test_the_most_useful_word_answers_and_the_others_are_accepted() -> None:
    entries = [
        entry("শুক্তি", "Oyster"),
        entry("ঝিনুক", "Oyster", "Shell", example="ঝিনুক ঝিনুক।"),
        entry("কড়ি", "Cowrie", "shell"),
    ]
    english = {item.english: item.words for item in split(entries, own_words=3).english}
    assert english["oyster"] == ("ঝিনুক", "শুক্তি")
    assert "shell" not in english  # only a second sense, not checked by hand
    assert english["water"] == ("জল", "পানি")
    assert english["home"] == ("বাড়ি",)  # a second sense checked by hand is asked
    assert english["God"][:2] == ("ঈশ্বর", "আল্লাহ")
    assert "god" not in english  # the same question
    assert "four" not in english  # numbers have a component of their own


def test_a_verb_is_also_asked_without_to() -> None:
    assert EnglishWord(english="to go", words=("যাওয়া",)).forms == ("to go", "go")
    assert EnglishWord(english="river", words=("নদী",)).forms == ("river",)


def test_core_unlearned_and_heldout_words_share_nothing() -> None:
    entries = [entry(f"{a}{b}ঝ", "Thing") for a in "কখগঘচছজঝটঠডঢ" for b in "ািীুূেৈোৌ"]
    words = split(entries, own_words=20, unlearned=60, percent=20.0)
    core = {word.word for word in words.core}
    unlearned = {word for word, _ in words.unlearned}
    assert len(unlearned) == 60
    assert words.heldout == {item.word for item in entries if is_held_out(item.word, 20.0)}
    assert not core & unlearned
    assert not core & words.heldout
    assert not unlearned & words.heldout


def test_what_we_wrote_is_never_held_out() -> None:
    ours = [*CHECKED, *(number.bangla for number in read_numerals())]
    assert any(is_held_out(word, 10.0) for word in ours)
    assert split([entry(word, "Thing") for word in ours], own_words=0, percent=10.0).heldout == frozenset()


def test_english_that_is_learned_is_never_refused() -> None:
    entries = [entry("জলধারা", "River"), entry("ঝিনুক", "Oyster"), entry("ছক্কাচার", "Twenty-nine")]
    assert dict(split(entries, own_words=0).unlearned) == {"জলধারা": "", "ঝিনুক": "oyster"}


def test_definitions_and_sentences_go_to_the_first_words() -> None:
    entries = [entry("ঝিনুক", "Oyster", meaning="শক্ত খোলার জলজ প্রাণী", example="ঝিনুকে মুক্তা থাকে।")]
    config = DictionaryConfig(core_words=5000, defined_words=3, sentence_words=2)
    core = split_words(entries, config, heldout_percent=1e-9).core
    assert [word.word for word in core if word.definition] == ["মা", "বাবা", "ভাই"]
    assert [word.word for word in core if word.sentence] == ["মা", "বাবা"]
    core = split(entries, own_words=1).core
    assert core[-1].definition == "শক্ত খোলার জলজ প্রাণী।"  # the dictionary's: its gloss may be another sense
    assert core[-1].sentence == "ঝিনুকে মুক্তা থাকে।"
    assert core[0].definition == "যিনি সন্তানকে জন্ম দেন, জননী (mother)।"
    assert {word.word: word.definition for word in core}["ধনুক"] == ""  # none is written, none is made up


def test_fillers_belong_to_no_headword() -> None:
    entries = [
        entry("ঝিনুক", "Oyster of sea", example="ঝিনুকের খোঁজে বেরিয়েছিলেন, বেরিয়েছিলেন।"),
        entry("পেয়ালা", "Cup", example="পেয়ালা ভেঙেছিলেন।"),
        entry("জলচর", "Living thing of water"),
    ]
    words = split(entries, own_words=2)
    assert words.fillers == ("বেরিয়েছিলেন", "খোঁজে", "ভেঙেছিলেন")
    assert words.english_fillers == ("living",)  # thing, of and water are asked for, alone or inside
