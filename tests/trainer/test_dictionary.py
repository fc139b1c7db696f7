"""The whole way from a database to documents and questions, on a dictionary made here."""

import json
import sqlite3
from collections import Counter
from pathlib import Path

import pytest

from mothertongue_trainer import dictionary
from mothertongue_trainer.contradictions import DICTIONARY_COMPONENTS
from mothertongue_trainer.dictionary import DictionaryCorpus, dictionary_documents, prose
from mothertongue_trainer.entries import Entry
from mothertongue_trainer.phrasings import OPENINGS, ask, genitive, read_phrasings
from mothertongue_trainer.recipe import DictionaryConfig
from mothertongue_trainer.turns import NOT_LEARNED, is_unseen_sum
from mothertongue_trainer.words import read_checked_words

LETTERS = "কখগঘচছজঝটঠডঢতথদধনপফবভমযরলশষসহ"
TAUGHT = read_checked_words()
MADE_UP = [a + b + c for a in LETTERS[:12] for b in LETTERS[12:24] for c in "ািু"]
RARE_WORDS = [word for word in MADE_UP if word not in TAUGHT]
HELDOUT_PERCENT = 10.0
WORDS_CHECKED_BY_HAND = len([line for line in TAUGHT.values() if line.senses])

Row = tuple[str, str | None, list[str], str, list[str]]

REAL_WORDS: list[Row] = [
    ("নদী", "বিশেষ্য", ["বৃহৎ জলধারা, স্রোতস্বিনী।"], "River", ["পদ্মা একটি নদী।"]),
    ("রাজা", "বিশেষ্য", ["দেশশাসক, নৃপতি।"], "Mason", ["বনের রাজা সিংহ।"]),
    ("দিগন্ত¹", "বিশেষ্য", ["দিকের শেষ সীমা।"], "Horizon / Skyline", ["দিগন্ত জোড়া মাঠ।", "unused"]),
    ("দিগন্ত²", "বিশেষ্য", ["অন্য কিছু।"], "Edge", ["দিগন্ত² দূরে।"]),
    ("চক্রবাল", "বিশেষ্য", ["দিগন্ত।"], "Horizon", ["চক্রবাল রেখা দেখা যায়।"]),
    ("শিবরাত্রি", None, ["ক্রিবি."], "Shiva", []),
]


def write_database(path: Path) -> None:
    rows = REAL_WORDS + [(word, "বিশেষ্য", [f"{word} ধরনের জিনিস।"], "Odd thing", []) for word in RARE_WORDS]
    with sqlite3.connect(path) as connection:
        connection.execute(
            "CREATE TABLE words (id INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT NOT NULL, "
            "pronunciation TEXT, etymology TEXT, part_of_speech TEXT, meanings TEXT, "
            "english_translation TEXT, examples TEXT)"
        )
        for word, part, meanings, english, examples in rows:
            connection.execute(
                "INSERT INTO words (word, part_of_speech, meanings, english_translation, examples) "
                "VALUES (?, ?, ?, ?, ?)",
                (word, part, json.dumps(meanings), english, json.dumps(examples)),
            )
    connection.close()


def made(
    monkeypatch: pytest.MonkeyPatch, database: Path, config: DictionaryConfig, seed: int
) -> DictionaryCorpus:
    monkeypatch.setattr(dictionary, "fetch_database", lambda package, sha256: database)
    return dictionary_documents(config, heldout_percent=HELDOUT_PERCENT, seed=seed)


# Room for the words checked by hand and two real ones of the fixture, not for the made-up ones.
CONFIG = DictionaryConfig(core_words=WORDS_CHECKED_BY_HAND + 2, defined_words=200, sentence_words=100)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dictionary") / "dictionary.db"
    write_database(path)
    return path


@pytest.fixture(scope="module")
def corpus(database: Path) -> DictionaryCorpus:
    with pytest.MonkeyPatch.context() as monkeypatch:
        return made(monkeypatch, database, CONFIG, seed=0)


@pytest.fixture(scope="module")
def turns(corpus: DictionaryCorpus) -> dict[str, list[tuple[str, str]]]:
    """Component -> (question, answer)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for component, documents in corpus.components.items():
        for document in documents:
            if document.messages:
                question, answer = document.messages
                assert (question.role, answer.role) == ("user", "assistant")
                found.setdefault(component, []).append((question.content, answer.content))
    return found


def answers(turns: list[tuple[str, str]], question: str) -> set[str]:
    return {answer for asked, answer in turns if plain(asked) == plain(question)}


def plain(question: str) -> str:
    """Return a question without quotation marks, openings and final signs."""
    for opening in OPENINGS:
        question = question.removeprefix(opening)
    return question.replace('"', "").replace("'", "").rstrip(" ?।!").casefold()


def test_every_component_of_the_recipe_is_there(corpus: DictionaryCorpus) -> None:
    assert set(corpus.components) == set(DICTIONARY_COMPONENTS)
    for component, documents in corpus.components.items():
        assert documents, component
        assert {document.component for document in documents} == {component}
        assert len({document.id for document in documents}) == len(documents), component
    assert corpus.source == "PyPI shobdo==0.2.2"
    assert "Apache-2.0" in corpus.licence


def test_answers_are_right(turns: dict[str, list[tuple[str, str]]]) -> None:
    meaning = "পাহাড় থেকে সাগরে বয়ে যাওয়া জলধারা (river)।"
    assert answers(turns["definition"], "নদী শব্দের অর্থ কী?") == {meaning}
    assert answers(turns["english"], "নদী ইংরেজিতে কী?") == {"river"}
    assert answers(turns["english"], "নদী") == {"river"}
    assert answers(turns["bangla"], "river এর বাংলা কী?") == {"নদী"}
    assert answers(turns["bangla"], "go") == answers(turns["bangla"], "to go") == {"যাওয়া"}
    assert answers(turns["sentence"], "নদী দিয়ে একটি বাক্য লেখো") == {"পদ্মা একটি বড় নদী।"}
    assert answers(turns["sums"], "৭ + ৫") <= {"১২"}
    assert answers(turns["numbers"], "৪৭ কথায় লেখো") == {"সাতচল্লিশ"}
    assert answers(turns["numbers"], "forty-seven এর বাংলা কী?") == {"সাতচল্লিশ"}


def test_a_gloss_mended_by_hand_wins(turns: dict[str, list[tuple[str, str]]]) -> None:
    assert answers(turns["english"], "রাজা ইংরেজিতে কী?") == {"king"}
    assert answers(turns["bangla"], "mason এর বাংলা কী?") == set()


def test_homographs_and_synonyms_are_accepted(corpus: DictionaryCorpus) -> None:
    core = {(question.skill, question.question): question.answers for question in corpus.core}
    assert core["english", "দিগন্ত ইংরেজিতে কী?"] == ("horizon", "skyline", "edge")
    assert core["bangla", "horizon এর বাংলা কী?"] == ("দিগন্ত", "চক্রবাল")
    assert core["bangla", "water এর বাংলা কী?"] == ("জল", "পানি")


def test_a_question_has_one_answer(turns: dict[str, list[tuple[str, str]]]) -> None:
    found: dict[str, set[str]] = {}
    for component in turns.values():
        for question, answer in component:
            if "বাক্য লেখা" not in answer:  # a sentence is asked in a way of its own
                found.setdefault(plain(question), set()).add(answer)
    assert {question: texts for question, texts in found.items() if len(texts) > 1} == {}


def test_words_in_quotation_marks_are_taught(turns: dict[str, list[tuple[str, str]]]) -> None:
    for component in ("english", "bangla", "definition", "sentence"):
        quoted = sum('"' in question or "'" in question for question, _ in turns[component])
        assert 0.2 < quoted / len(turns[component]) < 0.4, component


def test_no_heldout_word_is_in_training(
    corpus: DictionaryCorpus, turns: dict[str, list[tuple[str, str]]]
) -> None:
    heldout = {document.text.split(" (")[0] for document in corpus.heldout}
    assert 0.05 < len(heldout) / len(RARE_WORDS) < 0.15
    asked = {question for question, answers in ((q.question, q.answers) for q in corpus.core) if not answers}
    canonical = [read_phrasings()[skill].canonical for skill in ("english", "definition")]
    assert asked <= {ask(phrasing, {"w": word}) for phrasing in canonical for word in heldout}
    assert len(asked) == len(heldout)
    seen = [text for component in turns.values() for pair in component for text in pair]
    seen += [document.text for document in corpus.components["prose"]]
    forms = heldout | {genitive(word) for word in heldout}
    for text in seen:
        assert not forms & set(text.replace("'", " ").replace('"', " ").replace("?", " ").split()), text


def test_unlearned_words_are_in_no_other_component(turns: dict[str, list[tuple[str, str]]]) -> None:
    refused = [question for question, answer in turns["not_learned"] if answer == NOT_LEARNED]
    words = {word for question in refused for word in plain(question).split()} & set(RARE_WORDS)
    assert len(words) > 300
    for component in turns.keys() - {"not_learned"}:
        for question, _ in turns[component]:
            assert not words & set(plain(question).split()), (component, question)


def test_no_heldout_phrasing_is_in_training(
    corpus: DictionaryCorpus, turns: dict[str, list[tuple[str, str]]]
) -> None:
    trained = {question.casefold() for component in turns.values() for question, _ in component}
    unseen = [question.question for question in corpus.core if question.skill == "unseen_phrasing"]
    assert len(unseen) > 200
    assert not trained & {question.casefold() for question in unseen}


def test_no_unseen_sum_is_in_training(turns: dict[str, list[tuple[str, str]]]) -> None:
    digits = str.maketrans("০১২৩৪৫৬৭৮৯", "0123456789")
    seen = set()
    for question, answer in turns["sums"]:
        letters = "".join(sign if sign.isdigit() else " " for sign in question.translate(digits))
        a, b = map(int, letters.split())
        assert int(answer.translate(digits)) == a + b
        seen.add((a, b))
    unseen = {(a, b) for a in range(21) for b in range(21)} - seen
    assert 30 <= len(unseen) <= 90
    assert all((b, a) in unseen for a, b in unseen)
    assert {pair for pair in unseen if not is_unseen_sum(*pair)} == set()


def test_everything_taught_is_asked_once(corpus: DictionaryCorpus) -> None:
    counts = Counter(question.skill for question in corpus.core)
    assert counts["english"] == CONFIG.core_words
    assert counts["definition"] == 200
    assert counts["sentence"] == 100
    assert counts["numbers"] == 101 * 5
    assert counts["sums_seen"] + counts["sums_unseen"] == 21 * 21
    repeated = Counter((question.skill, question.question) for question in corpus.core)
    assert [key for key, count in repeated.items() if count > 1] == []


def test_the_same_seed_gives_the_same_corpus(
    corpus: DictionaryCorpus, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert made(monkeypatch, database, CONFIG, seed=0) == corpus
    other = made(monkeypatch, database, CONFIG, seed=1)
    assert other.components["english"] != corpus.components["english"]
    assert other.heldout == corpus.heldout  # the split knows no seed


def test_prose_alone_has_no_conversations(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = made(monkeypatch, database, DictionaryConfig(chat=False), seed=0)
    assert set(plain.components) == {"prose"}
    assert plain.core == []
    texts = {document.text for document in plain.components["prose"]}
    example = "চক্রবাল (বিশেষ্য): দিগন্ত। ইংরেজিতে Horizon। চক্রবাল রেখা দেখা যায়।"
    assert {example, "চক্রবাল রেখা দেখা যায়।"} <= texts | {document.text for document in plain.heldout}


def test_prose_leaves_out_what_is_missing() -> None:
    bare = Entry(word="শিব", part_of_speech="", meanings=(), glosses=(), example="")
    assert prose(bare) == "শিব।"
    long = Entry(
        word="শিব", part_of_speech="বিশেষ্য", meanings=("ক" * 150, "খ" * 50, "গ"), glosses=(), example=""
    )
    assert prose(long) == f"শিব (বিশেষ্য): {'ক' * 150}; গ।"
