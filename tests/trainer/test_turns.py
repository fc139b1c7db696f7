import dataclasses
import re

import numpy as np
import pytest

from mothertongue_trainer.turns import (
    INTERRUPTED,
    NO_SENTENCE,
    NOT_LEARNED,
    Questioner,
    Turn,
    chat_turns,
    is_unseen_sum,
)
from mothertongue_trainer.words import CoreWord, EnglishWord, WordList

WORDS = WordList(
    core=(
        CoreWord(word="নদী", senses=("river", "stream"), definition="জলধারা (river)।", sentence="নদী বয়।"),
        CoreWord(word="যাওয়া", senses=("to go",), definition="", sentence=""),
        CoreWord(word="ধন্যবাদ", senses=("thanks",), definition="", sentence=""),
    ),
    english=(
        EnglishWord(english="river", words=("নদী", "তটিনী")),
        EnglishWord(english="to go", words=("যাওয়া",)),
        EnglishWord(english="to play", words=("খেলা",)),
        EnglishWord(english="play", words=("নাটক",)),
    ),
    unlearned=tuple((f"অজানা{number}", "oyster") for number in range(200)),
    heldout=frozenset({"গোপন"}),
    fillers=("করছিলেন",),
    english_fillers=("whatever",),
)


@pytest.fixture(scope="module")
def turns() -> dict[str, list[Turn]]:
    return chat_turns(WORDS, np.random.default_rng(0))


def about(turns: list[Turn], word: str) -> list[Turn]:
    return [turn for turn in turns if word.casefold() in turn.question.casefold()]


def test_answers_are_short_and_always_the_same(turns: dict[str, list[Turn]]) -> None:
    assert {turn.answer for turn in about(turns["english"], "নদী")} == {"river"}
    assert {turn.answer for turn in about(turns["bangla"], "river")} == {"নদী"}
    assert {turn.answer for turn in turns["definition"]} == {"জলধারা (river)।"}
    assert {turn.answer for turn in turns["sentence"]} == {"নদী বয়।"}


def test_a_word_without_a_definition_is_explained_in_english(turns: dict[str, list[Turn]]) -> None:
    meanings = [turn for turn in about(turns["english"], "যাওয়া") if "অর্থ" in turn.question]
    assert meanings
    assert {turn.answer for turn in meanings} == {"to go"}
    assert "যাওয়া শব্দের অর্থ কী?" in {turn.question for turn in turns["english"]}
    assert "নদী শব্দের অর্থ কী?" not in {turn.question for turn in turns["english"]}


def test_bare_words_are_taught_in_both_directions(turns: dict[str, list[Turn]]) -> None:
    assert Turn(question="নদী", answer="river") in turns["english"]
    assert Turn(question="river", answer="নদী") in turns["bangla"]
    assert Turn(question="go", answer="যাওয়া") in turns["bangla"]


def test_a_verb_without_to_leaves_the_noun_its_question(turns: dict[str, list[Turn]]) -> None:
    assert Turn(question="play", answer="নাটক") in turns["bangla"]
    assert Turn(question="play", answer="খেলা") not in turns["bangla"]


def test_everyday_turns_win_over_words(turns: dict[str, list[Turn]]) -> None:
    assert not [turn for turn in turns["english"] if turn.question == "ধন্যবাদ"]
    assert about(turns["english"], "ধন্যবাদ")
    assert Turn(question="ধন্যবাদ", answer="আপনাকেও ধন্যবাদ!") in turns["everyday"]


def test_unlearned_words_are_refused_in_every_way_of_asking(turns: dict[str, list[Turn]]) -> None:
    refused = [turn for turn in turns["not_learned"] if "অজানা" in turn.question]
    assert len(refused) == 200
    assert {turn.answer for turn in refused} == {NOT_LEARNED}
    assert "শিখিনি" in NOT_LEARNED
    for skill in ("ইংরেজি", "অর্থ", "বাক্য"):
        assert any(skill in turn.question for turn in refused), skill
    assert any("oyster" in turn.question for turn in turns["not_learned"])
    assert {turn.answer for turn in about(turns["not_learned"], "যাওয়া")} == {NO_SENTENCE}
    assert not [turn for component in turns.values() for turn in about(component, "গোপন")]


def test_how_a_word_is_asked_for_does_not_tell_whether_it_was_learned() -> None:
    """Of the ways of asking that every learned word is asked in, unlearned words have their part."""
    names = [f"{a}{b}{c}" for a in "কখগঘচছজঝটঠড" for b in "তথদধনপফবভ" for c in "মযরলশষসহ"]
    unlearned = tuple((name, "") for name in names)
    words = dataclasses.replace(WORDS, core=(), english=(), unlearned=unlearned)
    asked = [turn.question for turn in chat_turns(words, np.random.default_rng(0))["not_learned"]]
    known = [*Questioner(WORDS, np.random.default_rng(0)).many("english", {"w": "নদী"}, "river", 12)]
    assert [turn.question for turn in known].count("নদী ইংরেজিতে কী?") == 1

    def share(pattern: str) -> float:
        return sum(re.fullmatch(pattern, question) is not None for question in asked) / len(asked)

    assert share(r"\S+ ইংরেজিতে কী\?") == pytest.approx(0.4 / 12, rel=0.4)
    assert share(r"\S+ শব্দের অর্থ কী\?") == pytest.approx(0.35 / 4, rel=0.3)
    assert share(r"\S+") >= 0.05


def test_unseen_sums_are_symmetric_and_some() -> None:
    unseen = {(a, b) for a in range(21) for b in range(21) if is_unseen_sum(a, b)}
    assert {(b, a) for a, b in unseen} == unseen
    assert 30 <= len(unseen) <= 90


def test_bare_sums_are_taught(turns: dict[str, list[Turn]]) -> None:
    questions = {turn.question: turn.answer for turn in turns["sums"]}
    assert questions["৭ + ৫"] == "১২"
    assert any("৭+৫" in question for question in questions)


def test_a_fact_is_asked_canonically_and_then_in_many_frames() -> None:
    questioner = Questioner(WORDS, np.random.default_rng(0))
    asked = [turn.question for turn in questioner.many("english", {"w": "নদী"}, "river", 40)]
    assert asked[0] == "নদী ইংরেজিতে কী?"
    assert len(set(asked)) >= 38
    assert len({len(question.split()) for question in asked}) >= 6
    sums = [turn.question for turn in questioner.many("sums", {"a": "৭", "b": "৫"}, "১২", 40)]
    assert any("plus" in question for question in sums)
    assert any("যোগফল" in question for question in sums)


def test_some_questions_hold_a_word_to_pass_over(turns: dict[str, list[Turn]]) -> None:
    def filled(component: str) -> list[Turn]:
        return [turn for turn in turns[component] if re.search("করছিলেন|whatever", turn.question.casefold())]

    assert 0.4 * INTERRUPTED < len(filled("not_learned")) / len(turns["not_learned"]) < 3 * INTERRUPTED
    for component in ("definition", "numbers"):
        assert filled(component), component
    for component in ("sums", "everyday"):
        assert not filled(component), component


def test_the_same_seed_gives_the_same_turns(turns: dict[str, list[Turn]]) -> None:
    assert chat_turns(WORDS, np.random.default_rng(0)) == turns
    assert chat_turns(WORDS, np.random.default_rng(1)) != turns
