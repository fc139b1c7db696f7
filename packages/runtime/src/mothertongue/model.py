"""A bundle, ready to talk: `load` verifies it and returns the `Model`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from mothertongue.answer import Answer, Completion
from mothertongue.bundle import Manifest, verify
from mothertongue.busyness import Watch
from mothertongue.chat import ChatFormat, Message
from mothertongue.conformance import check_graph
from mothertongue.errors import BundleError, DataError
from mothertongue.generate import Token, check_prompt, generate
from mothertongue.pages import give_back
from mothertongue.pool import SessionPool
from mothertongue.sampling import Sampler, Sampling
from mothertongue.session import Engine
from mothertongue.tokenizer import BOS

if TYPE_CHECKING:
    from mothertongue.conversation import Chat, Overflow

GREEDY = Sampling()
SESSIONS = 4
USUAL_CHARACTERS = 8  # for each token of the context: a text as long as that is simply encoded


class Model:
    """A loaded bundle. Threads may share it; each answer has a cache of its own."""

    def __init__(self, manifest: Manifest, format_: ChatFormat, engine: Engine, *, sessions: int) -> None:
        self.manifest = manifest
        self.format = format_
        self.engine = engine
        self._pool = SessionPool(engine, limit=sessions)

    @property
    def context(self) -> int:
        """The tokens that prompt and answer have room for together."""
        return self.engine.context

    def chat(
        self,
        *,
        system: str | None = None,
        sampling: Sampling = GREEDY,
        overflow: Overflow = "drop",
    ) -> Chat:
        """Return a new conversation; `overflow` says what happens when it no longer fits, see `Chat`."""
        from mothertongue.conversation import Chat

        return Chat(self, system=system, sampling=sampling, overflow=overflow)

    def answer(
        self,
        messages: Sequence[Message],
        sampling: Sampling = GREEDY,
        *,
        graphemes: bool = False,
        forgotten_turns: int = 0,
        finished: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        """Return the answer to a conversation as it is written, computing only what no cache holds.

        `graphemes` holds text back until letters have their signs, for a terminal. `finished` is called once
        with the text shown. Raises DataError if the last message is empty or the conversation does not fit
        the context.
        """
        self._check_length(sum(len(self.format.spelling(message)) for message in messages))
        ids = self.format.encode(messages)
        return self._answer(
            ids, sampling, graphemes=graphemes, forgotten_turns=forgotten_turns, finished=finished
        )

    def reply(self, messages: Sequence[Message], sampling: Sampling = GREEDY) -> Completion:
        """Return the whole answer to a conversation; see `answer`."""
        return self.answer(messages, sampling).complete()

    async def areply(self, messages: Sequence[Message], sampling: Sampling = GREEDY) -> Completion:
        """Return the whole answer to a conversation without holding up the event loop."""
        return await self.answer(messages, sampling).acomplete()

    def generate(self, prompt: str, sampling: Sampling = GREEDY, *, graphemes: bool = False) -> Answer:
        """Return the text that continues `prompt` as it is written, as prose and not as a conversation.

        Raises DataError if the prompt is empty or does not fit the context.
        """
        if not prompt.strip():
            raise DataError("the prompt is empty; give the beginning of a text")
        self._check_length(len(prompt))
        tokenizer = self.format.tokenizer
        ids = [tokenizer.special(BOS), *tokenizer.encode(prompt)]
        return self._answer(ids, sampling, graphemes=graphemes)

    def complete(self, prompt: str, sampling: Sampling = GREEDY) -> Completion:
        """Return the whole continuation of `prompt`; see `generate`."""
        return self.generate(prompt, sampling).complete()

    async def acomplete(self, prompt: str, sampling: Sampling = GREEDY) -> Completion:
        """Return the whole continuation of `prompt` without holding up the event loop."""
        return await self.generate(prompt, sampling).acomplete()

    @cached_property
    def _longest_token_bytes(self) -> int:
        tokenizer = self.format.tokenizer
        return max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocabulary))

    def _check_length(self, characters: int) -> None:
        """Raise DataError for a text that cannot fit, before seconds are spent on its tokens."""
        if characters <= USUAL_CHARACTERS * self.context:
            return
        # NFC composes at most four characters into one (UAX 15), and each has at least one byte.
        least = characters // (4 * self._longest_token_bytes)
        if least >= self.context:
            raise DataError(
                f"the prompt has {least} tokens or more, the model reads at most {self.context - 1}; "
                "shorten it"
            )

    def _answer(
        self,
        ids: Sequence[int],
        sampling: Sampling,
        *,
        graphemes: bool,
        forgotten_turns: int = 0,
        finished: Callable[[str], None] = lambda text: None,
    ) -> Answer:
        check_prompt(ids, self.context)
        Sampler(sampling, (), self.engine.vocabulary)  # its complaint belongs here, not to the first token

        def write(cancelled: Callable[[], bool]) -> Generator[Token, None, str]:
            with self._pool.borrow(ids) as session:
                return (
                    yield from generate(
                        session,
                        self.format.tokenizer,
                        ids,
                        sampling,
                        graphemes=graphemes,
                        cancelled=cancelled,
                    )
                )

        return Answer(write, prompt_tokens=len(ids), forgotten_turns=forgotten_turns, finished=finished)


def load(folder: Path | str, *, threads: int | None = None, sessions: int = SESSIONS) -> Model:
    """Return the model of the bundle in `folder`, every byte verified first.

    `threads` None means as many as this process may use; `sessions` answers can be written at the same time.
    Raises BundleError if the bundle is missing, incomplete, altered, not of the format or needs a newer
    version.
    """
    folder = Path(folder)
    watch = Watch()  # sees what else runs while the bundle is verified
    with ThreadPoolExecutor(1) as pool:  # hashing leaves Python free for the import, onnxruntime for the rest
        verified = pool.submit(verify, folder)
        Engine.prepare()
        manifest = verified.result()
        check_graph(folder, manifest)
        opened = pool.submit(ChatFormat.open, folder)
        engine = Engine.open(folder, threads=threads, watch=watch)
        try:
            format_ = opened.result()
        except DataError as error:
            raise BundleError(f"{error}; export the bundle again") from error
    if format_.tokenizer.vocabulary > engine.vocabulary:
        raise BundleError(
            f"{folder}: the tokenizer has {format_.tokenizer.vocabulary} tokens, the graph "
            f"{engine.vocabulary}; export the bundle again"
        )
    give_back()  # what reading the tokenizer took
    return Model(manifest, format_, engine, sessions=sessions)
