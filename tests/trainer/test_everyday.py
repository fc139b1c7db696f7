import re

from mothertongue_trainer.everyday import read_everyday


def answer(question: str) -> str:
    (found,) = {turn.answer for turn in read_everyday() if question in turn.phrasings.taught}
    return found


def test_everyday_questions_get_their_answer() -> None:
    assert "আমি মাতৃভাষা" in answer("তুমি কে?")
    assert answer("ধন্যবাদ") == "আপনাকেও ধন্যবাদ!"
    assert answer("How are you?") == answer("কেমন আছেন?")


def test_off_topic_requests_get_one_honest_sentence() -> None:
    honest = answer("Write a poem")
    assert honest.startswith("আমি ছোট মডেল")
    for question in ("একটি কবিতা লেখো", "আজকের আবহাওয়া কেমন?", "কোড লেখো", "বৃষ্টি নিয়ে একটি কবিতা লেখো"):
        assert answer(question) == honest


def test_sums_that_are_taught_are_not_refused() -> None:
    refused = [turn for turn in read_everyday() if "২০ পর্যন্ত" in turn.answer]
    assert len(refused) == 1
    for question in (*refused[0].phrasings.taught, *refused[0].phrasings.heldout):
        if "+" in question or "যোগ" in question:
            assert max(map(int, re.findall(r"\d+", question))) > 20, question
    assert {"১২ - ১", "৪৮ × ১২"} <= set(refused[0].phrasings.taught)


def test_no_question_is_asked_twice_or_held_out_and_taught() -> None:
    taught = [phrasing for turn in read_everyday() for phrasing in turn.phrasings.taught]
    heldout = [phrasing for turn in read_everyday() for phrasing in turn.phrasings.heldout]
    assert len(set(taught)) == len(taught)
    assert not {phrasing.rstrip("?!।") for phrasing in taught} & {
        phrasing.rstrip("?!।") for phrasing in heldout
    }


def test_answers_fit_a_line() -> None:
    assert all(10 <= len(turn.answer) <= 80 for turn in read_everyday())
