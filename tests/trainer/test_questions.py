from pathlib import Path

import numpy as np
import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.everyday import read_everyday
from mothertongue_trainer.questions import Question, core_questions, read_questions
from mothertongue_trainer.words import CoreWord, EnglishWord, WordList

WORDS = WordList(
    core=(
        CoreWord(word="নদী", senses=("river", "stream"), definition="জলধারা (river)।", sentence="নদী বয়।"),
        CoreWord(word="যাওয়া", senses=("to go",), definition="", sentence=""),
    ),
    english=(EnglishWord(english="river", words=("নদী", "তটিনী")),),
    unlearned=(("ঝিনুক", "oyster"),),
    heldout=frozenset({"গোপন", "গোপন কথা"}),
    fillers=(),
    english_fillers=(),
)


def questions(skill: str) -> list[Question]:
    return [one for one in core_questions(WORDS, np.random.default_rng(0)) if one.skill == skill]


def asked(skill: str) -> dict[str, tuple[str, ...]]:
    return {one.question: one.answers for one in questions(skill)}


def test_each_fact_is_asked_once_with_all_accepted_answers() -> None:
    assert asked("english") == {"নদী ইংরেজিতে কী?": ("river", "stream"), "যাওয়া ইংরেজিতে কী?": ("to go",)}
    assert asked("bangla") == {"river এর বাংলা কী?": ("নদী", "তটিনী")}
    assert asked("definition") == {"নদী শব্দের অর্থ কী?": ("জলধারা (river)।",)}
    assert asked("sentence") == {"নদী দিয়ে একটি বাক্য লেখো": ("নদী বয়।",)}


def test_numbers_are_asked_in_every_direction() -> None:
    numbers = asked("numbers")
    assert numbers["৪৭ কথায় লেখো"] == ("সাতচল্লিশ",)
    assert numbers["সাতচল্লিশ সংখ্যায় লেখো"] == ("৪৭",)
    assert numbers["৪৭ ইংরেজিতে কী?"] == ("forty-seven",)
    assert numbers["সাতচল্লিশ ইংরেজিতে কী?"] == ("forty-seven",)
    assert numbers["forty-seven এর বাংলা কী?"] == ("সাতচল্লিশ",)


def test_sums_are_split_into_seen_and_unseen() -> None:
    seen, unseen = asked("sums_seen"), asked("sums_unseen")
    assert not seen.keys() & unseen.keys()
    assert len(seen) + len(unseen) == 441
    assert (seen | unseen)["৭ + ৫"] == ("১২",)


def test_unseen_phrasings_ask_for_learned_facts() -> None:
    unseen = asked("unseen_phrasing")
    assert unseen["নদী শব্দটাকে ইংরেজিতে কী বলা হয়?"] == ("river", "stream")
    assert unseen["Explain what নদী means in Bangla"] == ("জলধারা (river)।",)
    assert any(answers == ("বিদায়! আবার কথা হবে।",) for answers in unseen.values())


def test_heldout_words_have_no_accepted_answer() -> None:
    (unknown,) = questions("unknown")  # of the two, the one that is a single word
    assert unknown.question in ("গোপন ইংরেজিতে কী?", "গোপন শব্দের অর্থ কী?")
    assert unknown.answers == ()


def test_a_damaged_question_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "core.jsonl"
    with pytest.raises(DataError, match="prepare"):
        read_questions(path)
    path.write_text('{"skill": "english", "question": "a", "answers": ["b"]}\n', encoding="utf-8")
    assert read_questions(path) == [Question(skill="english", question="a", answers=("b",))]
    path.write_text('{"skill": "english", "question": "a", "answers": []}\n{"skill": 1}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"core\.jsonl:2"):
        read_questions(path)
    path.write_bytes(b"\xff")
    with pytest.raises(DataError, match=r"core\.jsonl: not UTF-8"):
        read_questions(path)


def test_everyday_questions_are_all_that_people_wrote_and_a_hundred_of_the_generated() -> None:
    everyday = asked("everyday")
    written = {p for turn in read_everyday() if not turn.generated for p in turn.phrasings.taught}
    generated = {p for turn in read_everyday() if turn.generated for p in turn.phrasings.taught}
    assert {"ধন্যবাদ", "একটি কবিতা লেখো"} <= written
    assert {"নদী নিয়ে একটি কবিতা লেখো"} <= generated
    assert written <= everyday.keys()
    assert len(everyday.keys() - written) == 100
    assert everyday.keys() - written <= generated
    others = core_questions(WORDS, np.random.default_rng(1))
    assert {one.question for one in others if one.skill == "everyday"} != everyday.keys()
