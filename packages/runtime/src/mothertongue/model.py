"""A bundle, ready to talk: `load` verifies it and returns the `Model`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from mothertongue.bundle import Manifest, verify
from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import DataError
from mothertongue.generate import Completion, Piece, complete, generate
from mothertongue.sampling import Sampling
from mothertongue.session import Session
from mothertongue.tokenizer import BOS

GREEDY = Sampling()


class Model:
    """A loaded bundle with one cache: one conversation at a time, not for several threads at once."""

    def __init__(self, manifest: Manifest, format_: ChatFormat, session: Session) -> None:
        self.manifest = manifest
        self.format = format_
        self.session = session

    def chat(
        self, messages: Sequence[Message], sampling: Sampling = GREEDY, max_tokens: int | None = None
    ) -> Iterator[Piece]:
        """Yield the pieces of the answer to a conversation, computing only what its last turn added.

        Raises DataError if the last message is empty or the conversation does not fit the context.
        """
        return self._stream(self.format.encode(messages), sampling, max_tokens)

    def reply(
        self, messages: Sequence[Message], sampling: Sampling = GREEDY, max_tokens: int | None = None
    ) -> Completion:
        """Return the whole answer to a conversation; see `chat`."""
        ids = self.format.encode(messages)
        return complete(self._stream(ids, sampling, max_tokens), prompt_tokens=len(ids))

    def generate(
        self, prompt: str, sampling: Sampling = GREEDY, max_tokens: int | None = None
    ) -> Iterator[Piece]:
        """Yield the pieces of text that continue `prompt`, as prose and not as a conversation.

        Raises DataError if the prompt is empty or does not fit the context.
        """
        return self._stream(self._prose(prompt), sampling, max_tokens)

    def complete(self, prompt: str, sampling: Sampling = GREEDY, max_tokens: int | None = None) -> Completion:
        """Return the whole continuation of `prompt`; see `generate`."""
        ids = self._prose(prompt)
        return complete(self._stream(ids, sampling, max_tokens), prompt_tokens=len(ids))

    def _prose(self, prompt: str) -> list[int]:
        if not prompt.strip():
            raise DataError("the prompt is empty; give the beginning of a text")
        tokenizer = self.format.tokenizer
        return [tokenizer.special(BOS), *tokenizer.encode(prompt)]

    def _stream(self, ids: Sequence[int], sampling: Sampling, max_tokens: int | None) -> Iterator[Piece]:
        return generate(self.session, self.format.tokenizer, ids, sampling=sampling, max_tokens=max_tokens)


def load(folder: Path | str, *, threads: int | None = None) -> Model:
    """Return the model of the bundle in `folder`, every byte verified first.

    Raises BundleError if the bundle is missing, incomplete, altered or needs a newer version.
    """
    folder = Path(folder)
    manifest = verify(folder)
    return Model(manifest, ChatFormat.open(folder), Session.open(folder, threads=threads))
