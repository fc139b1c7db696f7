"""Held-out quality in bits per byte, which no tokenizer can flatter.

Counted are the tokens of the text and the <|end|> after it: what a model has to predict. <|bos|> is given,
padding and roles do not occur. Bytes are those of the text in UTF-8 and NFC, so a model pays for <|end|> and
gets no byte for it. Special tokens and pieces of characters are never turned into text to count bytes.

A text longer than a training row is read in windows of that length, one after the other: every token is
predicted once, the first ones of a window without what came before, as in training. That makes the figure an
upper bound.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mothertongue.errors import CheckpointError
from mothertongue_trainer.checkpoint import load_model, read_state
from mothertongue_trainer.document import Document, read_documents
from mothertongue_trainer.identity import hash_tokenizer
from mothertongue_trainer.model import IGNORED, Qwen3
from mothertongue_trainer.progress import Progress, silent
from mothertongue_trainer.recipe import Recipe
from mothertongue_trainer.shards import Shard
from mothertongue_trainer.tokens import DocumentEncoder

BATCH_TOKENS = 4096  # of one forward: the logits of a vocabulary of 49,152 take 0.8 GB


@dataclass(frozen=True, kw_only=True)
class Quality:
    """How well some text was predicted."""

    bits_per_byte: float  # nats / ln 2 / bytes
    nats_per_token: float  # nats / predicted tokens
    characters_per_token: float  # of the text alone; belongs beside nats per token
    bytes: int  # of the text
    characters: int
    tokens: int  # predicted: the text's and one <|end|> for each document
    documents: int


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The quality of a model by language, beside two that know less."""

    languages: dict[str, Quality]
    twin: dict[str, Quality]  # the same architecture before its first step
    unigram: dict[str, Quality]  # only how frequent each token is in the training text

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> str:
        """Return the evaluation as lines of text for a terminal."""
        lines = [f"{'held-out text':<20}{'bits/byte':>11}{'nats/token':>12}{'chars/token':>13}{'bytes':>12}"]
        kinds = {"model": self.languages, "untrained twin": self.twin, "unigram": self.unigram}
        for language in self.languages:
            for kind, qualities in kinds.items():
                q = qualities[language]
                figures = f"{q.bits_per_byte:>11.3f}{q.nats_per_token:>12.3f}{q.characters_per_token:>13.2f}"
                lines.append(f"{language + ' ' + kind:<20}{figures}{q.bytes:>12,}")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class HeldOutText:
    """The held-out documents of one language as tokens."""

    ids: Sequence[list[int]]  # <|bos|> text <|end|> each
    characters: int
    bytes: int

    def quality(self, nats: float) -> Quality:
        """Return what a total of `nats` over all predicted tokens means."""
        tokens = sum(len(ids) - 1 for ids in self.ids)
        return Quality(
            bits_per_byte=nats / math.log(2) / self.bytes,
            nats_per_token=nats / tokens,
            characters_per_token=self.characters / (tokens - len(self.ids)),
            bytes=self.bytes,
            characters=self.characters,
            tokens=tokens,
            documents=len(self.ids),
        )


def evaluate(
    recipe: Recipe, checkpoint: Path, run_folder: Path, *, progress: Progress = silent
) -> Evaluation:
    """Measure `checkpoint` on the held-out text of `run_folder` and note it in evaluation.json there.

    The twin is drawn with another seed than the model, so it is no relative of it. The unigram model gives
    each token (count + 1) / (all + V) from the labels of the training shards.

    Raises:
        CheckpointError: no complete checkpoint, or one of another tokenizer.
        DataError: no held-out text, tokenizer or shards.
    """
    encoder = DocumentEncoder(run_folder / "tokenizer")
    if read_state(checkpoint).tokenizer_sha256 != hash_tokenizer(run_folder / "tokenizer"):
        raise CheckpointError(
            f"{checkpoint}: trained with another tokenizer than {run_folder / 'tokenizer'}; "
            "restore that one, or train again"
        )
    model = load_model(checkpoint).eval()
    twin = Qwen3(model.config, model.vocabulary, seed=recipe.seed + 1).eval()
    shards = [Shard.open(run_folder / "tokens" / f"{name}.safetensors") for name in recipe.corpus.mixture]
    token_nats = unigram_nats(shards, vocabulary=model.vocabulary)
    documents = read_documents(run_folder / "corpus" / "heldout.jsonl")
    texts = heldout_texts(documents, encoder, documents_per_language=recipe.evaluation.documents)
    window = recipe.training.sequence_tokens
    qualities: dict[str, dict[str, Quality]] = {"languages": {}, "twin": {}, "unigram": {}}
    for done, (language, text) in enumerate(texts.items()):
        progress(f"evaluating {language}", done, len(texts))
        qualities["languages"][language] = text.quality(model_nats(model, text.ids, window=window))
        qualities["twin"][language] = text.quality(model_nats(twin, text.ids, window=window))
        qualities["unigram"][language] = text.quality(
            sum(float(token_nats[ids[1:]].sum()) for ids in text.ids)
        )
    evaluation = Evaluation(**qualities)
    write_evaluation(run_folder, {**evaluation.as_dict(), "checkpoint": checkpoint.name})
    return evaluation


def heldout_texts(
    documents: Iterable[Document], encoder: DocumentEncoder, *, documents_per_language: int
) -> dict[str, HeldOutText]:
    """Return the tokens of the first `documents_per_language` documents of each language."""
    chosen: dict[str, list[Document]] = {}
    for document in documents:
        of_language = chosen.setdefault(document.language, [])
        if len(of_language) < documents_per_language:
            of_language.append(document)
    return {
        language: HeldOutText(
            ids=[ids for ids, _ in encoder.encode(of_language)],
            characters=sum(document.characters for document in of_language),
            bytes=sum(len(document.text.encode()) for document in of_language),
        )
        for language, of_language in chosen.items()
    }


def model_nats(model: Qwen3, documents: Iterable[Sequence[int]], *, window: int) -> float:
    """Return the summed cross-entropy, in nats, of every token of `documents` after the first of each."""
    pieces = [
        torch.tensor(ids[start : start + window + 1])  # one more: inputs and labels overlap by all but one
        for ids in documents
        for start in range(0, len(ids) - 1, window)
    ]
    device = next(model.parameters()).device
    total = 0.0
    with torch.inference_mode():
        for batch in _batches(sorted(pieces, key=len)):
            rows = torch.nn.utils.rnn.pad_sequence(batch, batch_first=True, padding_value=IGNORED).to(device)
            # Padding stands at the end, where a causal model cannot see it from the text.
            total += model.loss(rows[:, :-1].clamp(min=0), rows[:, 1:]).item()
    return total


def _batches(pieces: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield `pieces`, sorted by length, in lists of at most `BATCH_TOKENS` tokens, padding included."""
    batch: list[torch.Tensor] = []
    for piece in pieces:
        if batch and (len(batch) + 1) * len(piece) > BATCH_TOKENS:
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def unigram_nats(shards: Iterable[Shard], *, vocabulary: int) -> npt.NDArray[np.float64]:
    """Return -ln((count + 1) / (all + V)) for each of the V entries, counted over the labels of `shards`."""
    counts = np.zeros(vocabulary)
    for shard in shards:
        counts += np.bincount(shard.tokens[shard.learn.astype(bool)], minlength=vocabulary)
    nats: npt.NDArray[np.float64] = np.log(counts.sum() + vocabulary) - np.log(counts + 1)
    return nats


def write_evaluation(run_folder: Path, values: dict[str, Any]) -> None:
    """Write `values` to `run_folder`/evaluation.json; what an exam found out about an older model goes."""
    path = run_folder / "evaluation.json"
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(values, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, path)
