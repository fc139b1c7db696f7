"""A conversation with a model: who said what, what of it still fits, and how it is kept on disk."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Literal, TypeAlias, get_args

from mothertongue.answer import Answer
from mothertongue.chat import Message
from mothertongue.errors import BundleError, DataError
from mothertongue.model import GREEDY, Model
from mothertongue.sampling import Sampling

SAVED_VERSION = 1
MAXIMUM_SAVED_BYTES = 1 << 26

Overflow: TypeAlias = Literal["drop", "error"]


class Chat:
    """Says one thing after the other to a model. One thread at a time; `Answer.cancel` is for any.

    When a conversation no longer fits, `overflow` "drop" drops its oldest turns, question and answer
    together, keeps the system message, and `Answer.forgotten_turns` says how many; "error" raises DataError.
    """

    def __init__(
        self,
        model: Model,
        *,
        system: str | None = None,
        sampling: Sampling = GREEDY,
        overflow: Overflow = "drop",
    ) -> None:
        if overflow not in get_args(Overflow):
            raise ValueError(f"overflow must be one of {', '.join(get_args(Overflow))}, got {overflow!r}")
        self._model = model
        self._opening = [Message("system", system)] if system else []
        self._turns: list[Message] = []  # question and answer in turn
        self._sampling = sampling
        self._overflow = overflow
        self._open: Answer | None = None  # the answer that may still be on its way

    @property
    def messages(self) -> list[Message]:
        """What the model still remembers, the system message first."""
        return self._opening + self._turns

    def reset(self) -> None:
        """Forget everything but the system message."""
        self._end_open()
        self._turns = []

    def say(self, text: str, sampling: Sampling | None = None, *, graphemes: bool = False) -> Answer:
        """Return the answer to `text` as it is written.

        An answer broken off is remembered as far as it was given, a question without an answer is not. An
        answer still on its way is cancelled. Raises DataError if the text is empty or does not fit the
        context by itself, and forgets nothing.
        """
        self._end_open()
        taught = self._taught([*self._turns, Message("user", text)])
        turns = self._fitting(taught)

        def finished(answer: str) -> None:
            if answer.strip():
                self._turns = [*turns, Message("assistant", answer)]

        self._open = self._model.answer(
            self._opening + turns,
            sampling or self._sampling,
            graphemes=graphemes,
            forgotten_turns=(len(taught) - len(turns)) // 2,
            finished=finished,
        )
        return self._open

    def save(self, path: Path | str) -> None:
        """Write the conversation to `path`, for `restore` with the same model."""
        self._end_open()
        path = Path(path)
        content = {
            "version": SAVED_VERSION,
            "model_sha256": self._model.manifest.model_sha256,
            "messages": [asdict(message) for message in self.messages],
        }
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)  # atomic: an older one stays whole if the disk is full

    def restore(self, path: Path | str) -> None:
        """Continue the conversation that `save` wrote to `path`, its system message included.

        Raises BundleError if another model wrote it, DataError if it is missing or none; then nothing
        changes.
        """
        messages = read_saved(Path(path), self._model.manifest.model_sha256)
        self._end_open()
        opening = 1 if messages and messages[0].role == "system" else 0
        self._opening, self._turns = messages[:opening], messages[opening:]

    def _end_open(self) -> None:
        if self._open:
            self._open.cancel()
            self._open = None

    def _taught(self, turns: list[Message]) -> list[Message]:
        """Return the last of `turns`, as many as the model was taught to see at once."""
        count = self._model.format.turns
        return turns if count is None else turns[-(2 * count - 1) :]

    def _fitting(self, turns: list[Message]) -> list[Message]:
        """Return the last of `turns`, as many as leave a quarter of the context to the answer."""
        if self._overflow == "error":
            return turns
        format_, context = self._model.format, self._model.context
        while len(turns) > 1 and len(format_.encode(self._opening + turns)) > context * 3 // 4:
            turns = turns[2:]
        return turns


def read_saved(path: Path, model_sha256: str) -> list[Message]:
    """Return the messages in `path`: perhaps a system message, then question and answer in turn.

    Raises BundleError if another model wrote them, DataError if the file is missing or none.
    """
    try:
        if path.stat().st_size > MAXIMUM_SAVED_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes, at most {MAXIMUM_SAVED_BYTES} expected")
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["version"] != SAVED_VERSION:
            raise ValueError(f"version {content['version']}, this program reads {SAVED_VERSION}")
        saved = str(content["model_sha256"])
        messages = [Message(message["role"], message["content"]) for message in content["messages"]]
        roles = [message.role for message in messages]
        turns = roles[1:] if roles[:1] == ["system"] else roles
        if turns != ["user", "assistant"] * (len(turns) // 2):
            raise ValueError("question and answer do not take turns")
        if not all(isinstance(message.content, str) for message in messages):
            raise ValueError("a message without text")
    except FileNotFoundError:
        raise DataError(f"{path}: no such conversation") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError(f"{path}: not a saved conversation ({error})") from None
    if saved != model_sha256:
        raise BundleError(
            f"{path}: written with the model {saved[:12]}, this one is {model_sha256[:12]}; load that model"
        )
    return messages
