"""The one implementation of the chat format: training, the exam and the runtime all encode through it.

The template is rendered with a placeholder for each message, and the contents are encoded apart. So whatever
a person types, `<|end|>` included, is text; only the template makes special tokens. And it is rendered once
for each sequence of roles, not for each conversation. The template comes with a bundle, so it runs in the
immutable sandbox of jinja2, where it reaches no code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

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
    """Conversations as token ids: a template, replacements, and a tokenizer.

    The replacements are made in what people type (`user`, `system`); answers are left as they stand.
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
        self._frames: dict[tuple[tuple[str, ...], bool], list[list[int]]] = {}
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

    def spelling(self, message: Message) -> str:
        """Return what the model reads of `message`: an answer as it stands, what people type in one form."""
        return message.content if message.role == "assistant" else self.normalise(message.content)

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
        frame = self._frame(tuple(message.role for message in messages), add_generation_prompt)
        ids = list(frame[0])
        learn = [0] * len(ids)
        for message, following in zip(messages, frame[1:], strict=True):
            content = self.tokenizer.encode(self.spelling(message))
            learned = 0
            if message.role == "assistant":
                if following[:1] != [self.tokenizer.special(END)]:
                    raise DataError(f"the chat template puts no {END} after an answer; it would never end")
                learned = len(content) + 1
            ids += content + following
            learn += [1] * learned + [0] * (len(content) + len(following) - learned)
        return ids, learn

    def _frame(self, roles: tuple[str, ...], add_generation_prompt: bool) -> list[list[int]]:
        """Return the ids of the template's own text: before, between and after messages of these roles."""
        key = (roles, add_generation_prompt)
        if key not in self._frames:
            texts = self._render(roles, add_generation_prompt)
            self._frames[key] = [self.tokenizer.encode_with_specials(text) for text in texts]
        return self._frames[key]

    def _render(self, roles: tuple[str, ...], add_generation_prompt: bool) -> list[str]:
        """Return the template's own text around messages of these roles, one piece more than there are."""
        # A noncharacter: no text of a template holds it, and nothing that a person types is rendered.
        turns = [{"role": role, "content": f"\ufdd0{index}\ufdd1"} for index, role in enumerate(roles)]
        tokens = {"bos_token": BOS, "eos_token": END, "pad_token": PAD}
        try:
            text = self._template.render(
                messages=turns, add_generation_prompt=add_generation_prompt, **tokens
            )
        except Exception as error:  # whatever a stranger's template raises
            raise DataError(f"the chat template refuses this conversation: {error}") from error
        parts = re.split("\ufdd0([0-9]+)\ufdd1", text)
        if parts[1::2] != [str(index) for index in range(len(roles))]:
            raise DataError("the chat template drops or repeats a message; it must write each one once")
        return parts[::2]


def refuse_conversation(message: str) -> NoReturn:
    """Raise the template's own complaint: templates call this as `raise_exception(message)`."""
    raise ValueError(message)
