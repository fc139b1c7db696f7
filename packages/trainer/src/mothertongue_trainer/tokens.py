"""Encode a prepared corpus: one token shard for each component of the mixture."""

from __future__ import annotations

import itertools
import shutil
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from mothertongue.chat import ChatFormat
from mothertongue.errors import DataError
from mothertongue.tokenizer import BOS, END, PAD, TOKENIZER_FILE, Tokenizer
from mothertongue_trainer.corpus import replace_folder
from mothertongue_trainer.document import Document, read_documents
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.shards import Shard

DOCUMENTS_PER_BATCH = 4096  # encoded at once, on all cores


def encode_corpus(recipe: Recipe, run_folder: Path, *, progress: Progress = silent) -> dict[str, int]:
    """Write `run_folder`/tokens, whole or not at all; return the number of tokens of each component.

    Raises:
        DataError: corpus or tokenizer is missing, or the tokenizer has another size than the recipe says.
    """
    folder = run_folder / "tokenizer"
    encoder = DocumentEncoder(folder)
    if encoder.vocabulary != recipe.tokenizer.vocabulary:
        raise DataError(
            f"{folder}: {encoder.vocabulary} entries, the recipe asks for {recipe.tokenizer.vocabulary}; "
            "run `mothertongue tokenizer` with this recipe"
        )
    temporary = run_folder / "tokens.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    counts = {}
    for done, name in enumerate(recipe.corpus.mixture):
        progress(f"encoding {name}", done, len(recipe.corpus.mixture))
        shard = encoder.shard(read_documents(run_folder / "corpus" / f"{name}.jsonl"))
        shard.save(temporary / f"{name}.safetensors")
        counts[name] = len(shard.tokens)
    replace_folder(temporary, run_folder / "tokens")
    return counts


class BatchTokenizer(Tokenizer):
    """A tokenizer that knows the texts it was told of beforehand, encoded all at once on all cores."""

    def prepare(self, texts: Sequence[str]) -> None:
        """Encode `texts`, and forget those of the batch before."""
        encodings = self._backend.encode_batch_fast(texts, add_special_tokens=False)
        self._prepared = {text: encoding.ids for text, encoding in zip(texts, encodings, strict=True)}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._prepared[text]
        return ids


class DocumentEncoder:
    """Turns documents into tokens, and says which of them are labels that count.

    Prose is <|bos|> text <|end|>, learned but for <|bos|>. A conversation is what `ChatFormat.encode_learned`
    makes of it, so that training, the exam and the runtime spell it alike.
    """

    def __init__(self, folder: Path) -> None:
        """Open the tokenizer `folder`; raise DataError if it is missing or damaged."""
        self._chat = ChatFormat.open(folder)
        path = folder / TOKENIZER_FILE
        self._tokenizer = BatchTokenizer(tokenizers.Tokenizer.from_file(str(path)))
        self._chat.tokenizer = self._tokenizer
        self._metadata = {
            "tokenizer_sha256": hash_tokenizer(folder),
            "vocabulary": str(self.vocabulary),
            "pad": str(self._tokenizer.special(PAD)),
        }

    @property
    def vocabulary(self) -> int:
        return self._tokenizer.vocabulary

    def encode(self, documents: Sequence[Document]) -> Iterator[tuple[list[int], list[int]]]:
        """Yield (ids, learn) of each of `documents`."""
        self._tokenizer.prepare([text for document in documents for text in self._spelling(document)])
        bos, end = self._tokenizer.special(BOS), self._tokenizer.special(END)
        for document in documents:
            if document.messages:
                yield self._chat.encode_learned(document.messages)
            else:
                ids = self._tokenizer.encode(document.text)
                yield [bos, *ids, end], [0] + [1] * (len(ids) + 1)

    def shard(self, documents: Iterable[Document]) -> Shard:
        """Return the token shard of `documents`."""
        tokens, learn = array("H"), array("B")
        offsets, characters = array("q", [0]), array("q")
        for batch in batched(documents, DOCUMENTS_PER_BATCH):
            for document, (ids, learned) in zip(batch, self.encode(batch), strict=True):
                tokens.extend(ids)
                learn.extend(learned)
                offsets.append(len(tokens))
                characters.append(document.characters)
        return Shard(
            tokens=np.frombuffer(tokens, dtype=np.uint16),
            learn=np.frombuffer(learn, dtype=np.uint8),
            offsets=np.frombuffer(offsets, dtype=np.int64),
            characters=np.frombuffer(characters, dtype=np.int64),
            metadata=self._metadata,
        )

    def _spelling(self, document: Document) -> Iterable[str]:
        """Return the passages of `document` as they will be encoded."""
        return map(self._chat.spelling, document.messages) if document.messages else (document.text,)


def batched(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Yield `documents` in lists of `size`, the last one shorter."""
    iterator = iter(documents)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
