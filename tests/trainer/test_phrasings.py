import re

import numpy as np
import pytest

from mothertongue_trainer.phrasings import (
    Phrasings,
    ask,
    ask_freely,
    compose,
    genitive,
    interrupt,
    read_phrasings,
)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("নদী", "নদীর"),
        ("আকাশ", "আকাশের"),
        ("বই", "বইয়ের"),
        ("মা", "মায়ের"),
        ("চা", "চায়ের"),
        ("রং", "রঙের"),
        ("বিদ্যুৎ", "বিদ্যুতের"),
        ("সময়", "সময়ের"),
        ("পাতা", "পাতার"),
    ],
)
def test_the_genitive_is_what_people_write(word: str, expected: str) -> None:
    assert genitive(word) == expected


def composed(phrasings: Phrasings) -> list[str]:
    return [phrasing for pattern in phrasings.composed for phrasing in pattern]


def test_every_skill_has_many_phrasings_and_holds_four_out() -> None:
    for skill, phrasings in read_phrasings().items():
        assert len(phrasings.taught) >= 12, skill
        assert len(phrasings.heldout) == 4, skill
        assert len(set(phrasings.taught)) == len(phrasings.taught), skill
        assert not {*phrasings.taught, *composed(phrasings)} & set(phrasings.heldout), skill


def test_word_skills_are_asked_in_hundreds_of_frames() -> None:
    for skill in ("english", "bangla", "definition", "sentence"):
        phrasings = read_phrasings()[skill]
        assert len(set(composed(phrasings))) >= 500, skill
        for phrasing in composed(phrasings):
            assert set(re.findall(r"\{(\w+)\}", phrasing)) <= {"w", "g", "e"}, phrasing
            assert "  " not in phrasing


def test_parts_are_combined_and_values_stay() -> None:
    parts = {"of": ["{w} এর", "{g}"], "what": ["কী?", "বলো"]}
    assert compose("{of} অর্থ {what}", parts) == [
        "{w} এর অর্থ কী?", "{w} এর অর্থ বলো", "{g} অর্থ কী?", "{g} অর্থ বলো",
    ]  # fmt: skip
    assert compose("{w} অর্থ", parts) == ["{w} অর্থ"]


def test_a_question_holds_its_word() -> None:
    assert ask("{g} ইংরেজি কী?", {"w": "নদী"}) == "নদীর ইংরেজি কী?"
    assert ask("{a} + {b}", {"a": "৭", "b": "৫"}) == "৭ + ৫"


def test_free_typing_quotes_drops_marks_and_stays_readable() -> None:
    random = np.random.default_rng(0)
    typed = {ask_freely("{g} ইংরেজি কী?", {"w": "নদী"}, random) for _ in range(400)}
    assert {"নদীর ইংরেজি কী?", "নদীর ইংরেজি কী", '"নদী" এর ইংরেজি কী?', "'নদী' এর ইংরেজি কী?"} <= typed
    assert all("নদী" in question and "{" not in question for question in typed)
    typed = {ask_freely("What is {w} in English?", {"w": "নদী"}, random) for _ in range(200)}
    assert {"What is নদী in English?", "what is নদী in English"} <= typed


def test_a_request_that_ends_with_a_vowel_sign_may_end_with_a_danda() -> None:
    random = np.random.default_rng(0)
    typed = {ask_freely("{w} ইংরেজিতে লেখো", {"w": "নদী"}, random) for _ in range(200)}
    assert {"নদী ইংরেজিতে লেখো", "নদী ইংরেজিতে লেখো।"} <= typed
    typed = {ask_freely("বাংলা: {e}", {"e": "river"}, random) for _ in range(200)}
    assert not [question for question in typed if question.endswith((":।", ":?"))]


def test_requests_are_polite_at_either_end() -> None:
    random = np.random.default_rng(0)
    typed = {ask_freely("What is {w} in English?", {"w": "নদী"}, random) for _ in range(2000)}
    assert {"please, What is নদী in English?", "What is নদী in English please"} <= typed
    typed = {ask_freely("{w} ইংরেজিতে কী?", {"w": "নদী"}, random) for _ in range(2000)}
    assert {"স্যার, নদী ইংরেজিতে কী?", "নদী ইংরেজিতে কী স্যার"} <= typed


def test_a_bare_word_stays_bare() -> None:
    random = np.random.default_rng(0)
    typed = {ask_freely("{w}", {"w": "নদী"}, random) for _ in range(300)}
    assert typed == {"নদী", '"নদী"', "'নদী'"}


def test_a_filler_may_stand_anywhere_but_inside_a_word() -> None:
    random = np.random.default_rng(0)
    typed = {interrupt("{w} অর্থ কী?", "তবে", random) for _ in range(100)}
    assert typed == {"তবে {w} অর্থ কী?", "{w} তবে অর্থ কী?", "{w} অর্থ তবে কী?", "{w} অর্থ কী? তবে"}
