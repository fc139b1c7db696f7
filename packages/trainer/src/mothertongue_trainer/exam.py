"""The exam: the shipped int8 bundle is asked what the model was taught, and what it was not.

Greedy answers through the runtime, as a user gets them; right is what is accepted letter for letter.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

import mothertongue
from mothertongue.chat import Message
from mothertongue.errors import CheckpointError
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.questions import Question, read_questions
from mothertongue_trainer.recipe import Recipe

# Skills whose figure is the share of right answers. `unknown` has a figure of its own.
SKILLS = (
    "english", "bangla", "definition", "sentence", "numbers", "everyday",
    "sums_seen", "sums_unseen", "unseen_phrasing",
)  # fmt: skip
KNOWN_WORDS = ("english", "bangla", "definition", "sentence")  # asked for something that was learned
REFUSAL = "শিখিনি"  # in every answer that says a word was not learned
WORKERS = 2
QUESTIONS_AT_ONCE = 40  # sent to a worker: few enough that Ctrl-C waits less than a second
LONGEST_ANSWER_TOKENS = 80
MISSES_SHOWN = 20  # of each skill

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the model said to a question."""

    question: Question
    text: str

    @property
    def refused(self) -> bool:
        return REFUSAL in self.text

    @property
    def right(self) -> bool:
        """Whether it is accepted; for a word that was not learned, whether it says so."""
        return self.text.strip() in self.question.answers if self.question.answers else self.refused


def take_exam(recipe: Recipe, run_folder: Path, *, progress: Progress = silent) -> dict[str, Any]:
    """Examine the recipe's bundle; write `run_folder`/exam.json and the key "chat" of its evaluation.json.

    Raises:
        BundleError: no bundle, or not whole.
        CheckpointError: the run was not evaluated.
    """
    path = run_folder / "evaluation.json"
    try:
        evaluation = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path}: not found; run `mothertongue evaluate` first") from None
    except ValueError:
        raise CheckpointError(f"{path}: damaged, no JSON; run `mothertongue evaluate` again") from None
    result = examine(
        recipe.bundle_folder,
        run_folder / "corpus" / "core.jsonl",
        questions_per_skill=recipe.evaluation.chat_questions,
        seed=recipe.seed,
        progress=progress,
    )
    _write_json(path, {**evaluation, "chat": result})
    _write_json(run_folder / "exam.json", result)
    return result


def examine(
    bundle_folder: Path,
    core_path: Path,
    *,
    questions_per_skill: int,
    seed: int,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Ask at most `questions_per_skill` questions of each skill; return percentages, counts and first misses.

    A skill without questions has the figure None.

    Raises:
        BundleError: no bundle, or not whole.
        DataError: no questions, or not in their form.
    """
    questions = choose_questions(read_questions(core_path), questions_per_skill, np.random.default_rng(seed))
    mothertongue.load(bundle_folder, threads=1)  # its errors belong here, not into a worker
    answers = []
    for answer in _answers(bundle_folder, questions):
        answers.append(answer)
        progress("asking the int8 bundle", len(answers), len(questions))
    return grade(answers)


def choose_questions(
    questions: Iterable[Question], questions_per_skill: int, random: np.random.Generator
) -> list[Question]:
    """Return at most `questions_per_skill` questions of each skill, drawn without replacement, in order."""
    chosen = []
    for own in _by_skill(questions, lambda question: question.skill).values():
        count = min(questions_per_skill, len(own))
        chosen += [own[index] for index in sorted(random.choice(len(own), size=count, replace=False))]
    return chosen


def grade(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return what evaluation.json keeps under "chat"."""
    by_skill = _by_skill(answers, lambda answer: answer.question.skill)
    known = [answer for skill in KNOWN_WORDS for answer in by_skill.get(skill, ())]
    return {
        **{f"{skill}_percent": _percent(a.right for a in by_skill.get(skill, ())) for skill in SKILLS},
        "unknown_refused_percent": _percent(answer.refused for answer in by_skill.get("unknown", ())),
        "known_refused_percent": _percent(answer.refused for answer in known),
        "questions": {skill: len(own) for skill, own in by_skill.items()},
        "misses": {skill: list(_misses(own)) for skill, own in by_skill.items()},
    }


def _by_skill(items: Iterable[T], skill_of: Callable[[T], str]) -> dict[str, list[T]]:
    groups: dict[str, list[T]] = defaultdict(list)
    for item in items:
        groups[skill_of(item)].append(item)
    return groups


def _percent(flags: Iterable[bool]) -> float | None:
    values = list(flags)
    return round(100 * sum(values) / len(values), 2) if values else None


def _misses(answers: Sequence[Answer]) -> Iterator[dict[str, Any]]:
    for answer in [answer for answer in answers if not answer.right][:MISSES_SHOWN]:
        yield {
            "question": answer.question.question,
            "answer": answer.text,
            "accepted": list(answer.question.answers),
        }


def _answers(bundle_folder: Path, questions: Sequence[Question]) -> Iterator[Answer]:
    """Yield the answers in order, computed by processes of one thread each."""
    texts = [question.question for question in questions]
    # Spawned, not forked: onnxruntime and torch keep threads that a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        WORKERS, mp_context=context, initializer=_leave_interrupts_to_the_parent
    ) as pool:
        with _interrupts_ignored():  # the workers start here and inherit it, before any line of theirs
            replies = pool.map(partial(_reply, bundle_folder), texts, chunksize=QUESTIONS_AT_ONCE)
        for question, text in zip(questions, replies, strict=True):
            yield Answer(question=question, text=text)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # on Ctrl-C the parent stops sending questions


@cache  # each worker loads once
def _model(bundle_folder: Path) -> mothertongue.Model:
    return mothertongue.load(bundle_folder, threads=1)


def _reply(bundle_folder: Path, question: str) -> str:
    messages = [Message("user", question)]
    return _model(bundle_folder).reply(messages, mothertongue.Sampling(max_tokens=LONGEST_ANSWER_TOKENS)).text


def _write_json(path: Path, value: dict[str, Any]) -> None:
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_text(json.dumps(value, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
