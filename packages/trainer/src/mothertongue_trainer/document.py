"""A document: one piece of prose or one conversation, and its form as a line of JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mothertongue.chat import Message
from mothertongue.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Document:
    """Prose (`text`) or a conversation (`messages`): exactly one of the two is not empty."""

    id: str
    language: str  # ISO 639-1
    component: str  # its name in `[corpus.mixture]`
    text: str = ""
    messages: tuple[Message, ...] = ()

    @property
    def passages(self) -> tuple[str, ...]:
        """The texts in it: the prose, or what each message says."""
        return tuple(message.content for message in self.messages) or (self.text,)

    @property
    def characters(self) -> int:
        """Unicode code points of all passages: the unit in which corpora are mixed."""
        return sum(map(len, self.passages))

    @property
    def turns(self) -> int:
        """The number of questions in it."""
        return sum(message.role == "user" for message in self.messages)

    def to_json(self) -> str:
        """Return one line of JSON; the component is the name of the file that holds it."""
        body: dict[str, object] = {"id": self.id, "language": self.language}
        if self.messages:
            body["messages"] = [{"role": turn.role, "content": turn.content} for turn in self.messages]
        else:
            body["text"] = self.text
        return json.dumps(body, ensure_ascii=False)


def read_documents(path: Path) -> Iterator[Document]:
    """Yield the documents of a prepared file, `runs/NAME/corpus/COMPONENT.jsonl`, in order.

    Raises:
        DataError: the file is missing or was altered.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                yield _read_document(line, component=path.stem, where=f"{path}:{number}")
    except FileNotFoundError:
        raise DataError(f"{path}: missing; run `mothertongue prepare` with this recipe") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: not UTF-8; run `mothertongue prepare` with this recipe") from None


def _read_document(line: str, *, component: str, where: str) -> Document:
    try:
        body = json.loads(line)
        return Document(
            id=body["id"],
            language=body["language"],
            component=component,
            text=body.get("text", ""),
            messages=tuple(Message(**message) for message in body.get("messages", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise DataError(
            f"{where}: not a prepared document; run `mothertongue prepare` with this recipe"
        ) from None
