import numpy as np
import pytest

from mothertongue_trainer.phrasings import ask, ask_freely, genitive, read_phrasings


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


def test_every_skill_has_many_phrasings_and_holds_four_out() -> None:
    for skill, phrasings in read_phrasings().items():
        assert len(phrasings.taught) >= 12, skill
        assert len(phrasings.heldout) == 4, skill
        assert len({*phrasings.taught, *phrasings.heldout}) == len(phrasings.taught) + 4, skill


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


def test_a_bare_word_stays_bare() -> None:
    random = np.random.default_rng(0)
    assert {ask_freely("{w}", {"w": "নদী"}, random) for _ in range(300)} == {"নদী", '"নদী"', "'নদী'"}
