"""Measure a bundle against PyTorch: the same held-out text through both, token by token.

The bundle runs in the runtime's own session, one token at a time with its cache. PyTorch computes each text
anew, without a cache. So a fault of the graph, the cache, the positions or the quantization shows here.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from mothertongue.errors import DataError
from mothertongue.session import Session
from mothertongue.tokenizer import BOS, END, Tokenizer
from mothertongue_export.parity import NEAR_TIE_NATS, Figures, GreedyText, LanguageParity
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import Progress

TOKENS_PER_LANGUAGE = 8192  # a flip in 10,000 tokens is visible, and 0.4 B parameters take two minutes
GREEDY_TEXTS = 4
GREEDY_PROMPT_TOKENS, GREEDY_TOKENS = 8, 24
TOP = 5
ROWS = 64  # positions compared at once, so that a large vocabulary fits in memory


@dataclass(frozen=True, kw_only=True)
class HeldoutText:
    """One held-out document as the ids that both models read."""

    language: str
    ids: tuple[int, ...]  # with <|bos|> and, if the context has room, <|end|>
    bytes: int  # of the text that the ids after the first stand for


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What both models say at each position of a text; arrays (positions,)."""

    kl: NDArray[np.float64]  # nats, of the bundle from PyTorch
    margin: NDArray[
        np.float64
    ]  # nats by which PyTorch prefers its own first choice to the bundle's; 0: the same
    top_shared: NDArray[np.float64]  # share of PyTorch's first five choices among those of the bundle
    bits_torch: NDArray[np.float64]  # -log2 p of the token that follows
    bits_bundle: NDArray[np.float64]


def measure(
    session: Session,
    model: PyTorchModel,
    texts: Sequence[HeldoutText],
    *,
    reference_max_abs: float,
    progress: Progress,
) -> Figures:
    """Return the distance of the bundle in `session` from `model` on `texts`, at least one."""
    agreements, prefill_kl = [], []
    for number, text in enumerate(texts):
        progress("Comparing with PyTorch", number, len(texts))
        ids = text.ids[:-1]
        rows = feed_one_by_one(session, ids)
        agreements.append(compare(model.logits([ids])[0], rows, text.ids[1:]))
        prefill_kl.append(_prefill_kl(session, ids, rows[-1]))
    kl = np.concatenate([agreement.kl for agreement in agreements])
    margin = np.concatenate([agreement.margin for agreement in agreements])
    return Figures(
        reference_max_abs=reference_max_abs,
        tokens=len(kl),
        kl_mean=float(kl.mean()),
        kl_p99=float(np.quantile(kl, 0.99)),
        kl_max=float(kl.max()),
        top1_agreement_percent=_percent(margin == 0),
        near_tie_flips_percent=_percent((margin > 0) & (margin <= NEAR_TIE_NATS)),
        clear_flips_percent=_percent(~(margin <= NEAR_TIE_NATS)),  # NaN counts as a flip
        top5_overlap_percent=_percent(np.concatenate([agreement.top_shared for agreement in agreements])),
        prefill_kl_max=float(np.max(prefill_kl)),
        languages=_languages(texts, agreements),
        greedy=[write_both(session, model, text) for text in texts[:GREEDY_TEXTS]],
    )


def select_texts(heldout: Sequence[Document], tokenizer: Tokenizer, *, context: int) -> list[HeldoutText]:
    """Return the first held-out texts of each language, about `TOKENS_PER_LANGUAGE` tokens of it.

    A document longer than the context is cut there.

    Raises:
        DataError: no document holds prose.
    """
    texts: list[HeldoutText] = []
    tokens: Counter[str] = Counter()
    for document in heldout:
        if not document.text or tokens[document.language] >= TOKENS_PER_LANGUAGE:
            continue
        ids = [tokenizer.special(BOS), *tokenizer.encode(document.text), tokenizer.special(END)][:context]
        tokens[document.language] += len(ids)
        length = sum(len(tokenizer.token_bytes(token)) for token in ids)
        texts.append(HeldoutText(language=document.language, ids=tuple(ids), bytes=length))
    if not texts:
        raise DataError("no held-out text; the proof needs documents that the model has not seen")
    return texts


def feed_one_by_one(session: Session, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits (T, V) of the bundle after each of T `ids`, fed one by one to an empty cache."""
    session.reset()
    return np.stack([session.feed([token]) for token in ids])


def compare(expected: NDArray[np.float32], found: NDArray[np.float32], following: Sequence[int]) -> Agreement:
    """Return how the logits `found` (T, V) agree with PyTorch's, given the T tokens that really follow."""
    parts = [
        _compare_rows(expected[rows], found[rows], np.array(following[rows]))
        for rows in (slice(begin, begin + ROWS) for begin in range(0, len(expected), ROWS))
    ]
    names = [field.name for field in dataclasses.fields(Agreement)]
    return Agreement(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _compare_rows(
    expected: NDArray[np.float32], found: NDArray[np.float32], following: NDArray[np.int64]
) -> Agreement:
    torch, bundle = log_softmax(expected), log_softmax(found)
    row = np.arange(len(torch))
    best = [np.argpartition(logs, -TOP, axis=1)[:, -TOP:] for logs in (torch, bundle)]
    shared = (best[0][:, :, None] == best[1][:, None, :]).any(axis=2)
    return Agreement(
        kl=(np.exp(torch) * (torch - bundle)).sum(axis=1),
        margin=torch.max(axis=1) - torch[row, bundle.argmax(axis=1)],
        top_shared=shared.mean(axis=1),
        bits_torch=-torch[row, following] / math.log(2),
        bits_bundle=-bundle[row, following] / math.log(2),
    )


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the log-probabilities of `logits` (..., V) in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    logs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return logs


def write_both(session: Session, model: PyTorchModel, text: HeldoutText) -> GreedyText:
    """Return how far bundle and PyTorch continue the beginning of `text` with the same greedy tokens."""
    prompt = text.ids[:GREEDY_PROMPT_TOKENS]
    session.reset()
    logits = session.feed(prompt)
    written: list[int] = []
    while len(written) < GREEDY_TOKENS and session.position < session.context:
        written.append(int(logits.argmax()))
        logits = session.feed(written[-1:])
    # PyTorch chooses at each place of the bundle's text; up to the first difference it would write the same.
    rows = model.logits([[*prompt, *written]])[0, len(prompt) - 1 : -1]
    losses = rows.max(axis=1) - rows[np.arange(len(written)), written]
    same = next((place for place, loss in enumerate(losses) if loss != 0), len(written))
    difference: Literal["none", "near-tie", "clear"] = "none"
    if same < len(written):
        difference = "near-tie" if losses[same] <= NEAR_TIE_NATS else "clear"
    return GreedyText(prompt_ids=prompt, ids=written[:same], tokens=same, difference=difference)


def _prefill_kl(session: Session, ids: Sequence[int], expected: NDArray[np.float32]) -> float:
    """Return the KL of the last position when `ids` are fed in two pieces instead of one by one."""
    session.reset()
    half = len(ids) // 2
    if half:
        session.feed(ids[:half])
    one, two = log_softmax(expected), log_softmax(session.feed(ids[half:]))
    return float((np.exp(one) * (one - two)).sum())


def _languages(texts: Sequence[HeldoutText], agreements: Sequence[Agreement]) -> dict[str, LanguageParity]:
    languages = {}
    for code in sorted({text.language for text in texts}):
        of_it = [(text, part) for text, part in zip(texts, agreements, strict=True) if text.language == code]
        length = sum(text.bytes for text, _ in of_it)
        torch = sum(float(part.bits_torch.sum()) for _, part in of_it) / length
        bundle = sum(float(part.bits_bundle.sum()) for _, part in of_it) / length
        languages[code] = LanguageParity(
            bits_per_byte_torch=torch,
            bits_per_byte_bundle=bundle,
            increase_percent=100 * (bundle / torch - 1),
            tokens=sum(len(part.kl) for _, part in of_it),
            bytes=length,
        )
    return languages


def _percent(share: NDArray[Any]) -> float:
    return 100 * float(share.mean())
