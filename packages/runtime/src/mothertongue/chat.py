"""The one implementation of the chat format: training, the exam and the runtime all encode through it.

The template is rendered with a placeholder for each message, and the contents are encoded apart. So whatever
a person types, `<|end|>` included, is text; only the template makes special tokens. The template comes with a
bundle, so it runs in jinja2's immutable sandbox, where it reaches no code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from mothertongue.errors import DataError
from mothertongue.tokenizer import BOS, END, PAD, Tokenizer

TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class Message:
    """One turn of a conversation: who speaks (`system`, `user` or `assistant`), and what is said."""

    role: str
    content: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"the role of a message must be one of {', '.join(ROLES)}, got {self.role!r}")


class ChatFormat:
    """Conversations as token ids: a template, the replacements made in every message, and a tokenizer.

    `turns` is how many questions with their answers a model of this format was taught to see at once, the
    present one included; None if as many as its context holds.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: str,
        replacements: Mapping[str, str],
        turns: int | None = None,
    ) -> None:
        # Deferred: training code that only reads prose, and `--help`, do without it.
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.tokenizer = tokenizer
        self.turns = turns
        self._replacements = str.maketrans(dict(replacements))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = refuse_conversation
        try:
            self._template = environment.from_string(template)
        except TemplateError as error:
            raise DataError(f"the chat template is not valid jinja: {error}") from error

    @classmethod
    def open(cls, folder: Path) -> ChatFormat:
        """Return the chat format of a run's tokenizer folder, a checkpoint or a bundle.

        Raises DataError when a file is missing or holds no chat template.
        """
        path = folder / TOKENIZER_CONFIG_FILE
        try:
            config = json.loads(path.read_text(encoding="utf-8"))
            template, ours = config["chat_template"], config["mothertongue"]
            replacements, turns = ours["replacements"], ours.get("turns")
        except FileNotFoundError:
            raise DataError(f"{path}: not found; it holds the chat template") from None
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(
                f"{path}: {error!r}; expected JSON with chat_template and mothertongue.replacements"
            ) from error
        try:
            return cls(Tokenizer.open(folder), template, replacements, turns)
        except ValueError:  # str.maketrans: a key longer than one character
            raise DataError(f"{path}: each key of mothertongue.replacements must be one character") from None

    def normalise(self, content: str) -> str:
        """Return `content` as the model was taught to read it: replacements made, white space collapsed."""
        return " ".join(content.translate(self._replacements).split())

    def encode(self, messages: Sequence[Message]) -> list[int]:
        """Return the prompt of a conversation: its ids up to and including `<|assistant|>`.

        Raises DataError unless it ends with a user message that is not empty.
        """
        if not messages or messages[-1].role != "user" or not self.normalise(messages[-1].content):
            raise DataError("the prompt is empty; type a question")
        ids, _ = self._encode(messages, add_generation_prompt=True)
        return ids

    def encode_learned(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """Return the ids of a whole conversation, and 1 for each id that is to be learned, else 0.

        Learned are the contents of the assistant and the `<|end|>` after each.
        """
        return self._encode(messages, add_generation_prompt=False)

    def _encode(
        self, messages: Sequence[Message], *, add_generation_prompt: bool
    ) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        learn: list[int] = []
        answered = False
        for part in self._render(messages, add_generation_prompt):
            learned = isinstance(part, Message) and part.role == "assistant"
            if isinstance(part, Message):
                part_ids = self.tokenizer.encode(self.normalise(part.content))
            else:
                part_ids = self.tokenizer.encode_with_specials(part)
            ids += part_ids
            learn += [int(learned)] * len(part_ids)
            if answered:
                if part_ids[:1] != [self.tokenizer.special(END)]:
                    raise DataError(f"the chat template puts no {END} after an answer; answers would not end")
                learn[-len(part_ids)] = 1
            answered = learned
        return ids, learn

    def _render(self, messages: Sequence[Message], add_generation_prompt: bool) -> list[str | Message]:
        """Return the rendered template as text and messages in turn, first and last of them text."""
        # A noncharacter: no text of a template holds it, and nothing a person types reaches this rendering.
        turns = [{"role": m.role, "content": f"\ufdd0{index}\ufdd1"} for index, m in enumerate(messages)]
        tokens = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
        try:
            text = self._template.render(
                messages=turns, add_generation_prompt=add_generation_prompt, **tokens
            )
        except Exception as error:  # whatever a stranger's template raises
            raise DataError(f"the chat template refuses this conversation: {error}") from error
        parts: list[Any] = re.split("\ufdd0([0-9]+)\ufdd1", text)
        parts[1::2] = [int(index) for index in parts[1::2]]
        if parts[1::2] != list(range(len(messages))):
            raise DataError("the chat template drops or repeats a message; it must write each one once")
        parts[1::2] = messages
        return parts


def refuse_conversation(message: str) -> NoReturn:
    """Raise the template's own complaint: templates call this as `raise_exception(message)`."""
    raise ValueError(message)
