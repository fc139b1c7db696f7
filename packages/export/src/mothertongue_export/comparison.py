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
from mothertongue_export.bootstrap import ratio_interval
from mothertongue_export.parity import NEAR_TIE_NATS, Chats, Figures, GreedyText, LanguageParity
from mothertongue_export.pytorch import PyTorchModel
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import Progress

TOKENS_PER_LANGUAGE = 8192  # a flip in 10,000 tokens is visible
# Tokens times parameters of a whole proof: 5,000 tokens of 0.4 B parameters, which take two minutes.
PROOF_WORK = 2e12
LONGEST_TEXT = 1024  # tokens: the logits of one text are in memory three times
GREEDY_TEXTS = 4
GREEDY_PROMPT_TOKENS, GREEDY_TOKENS = 8, 24
TOP = 5
ROWS = 64  # positions compared at once, so that a large vocabulary fits in memory


@dataclass(frozen=True, kw_only=True)
class HeldoutText:
    """One held-out document as the ids that both models read."""

    language: str
    document: str  # its id
    ids: tuple[int, ...]  # with <|bos|> and, if the context has room, <|end|>
    bytes: int  # of the text that the ids after the first stand for


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """What both models say at each position of a text; arrays (positions,)."""

    kl: NDArray[np.float64]  # nats, of the bundle from PyTorch
    margin: NDArray[
        np.float64
    ]  # nats by which PyTorch prefers its own first choice to the bundle's; 0: the same
    error_max: NDArray[np.float64]  # largest difference of a logit
    error_mean: NDArray[np.float64]  # mean difference of the logits
    top_shared: NDArray[np.float64]  # share of PyTorch's first five choices among those of the bundle
    bits_torch: NDArray[np.float64]  # -log2 p of the token that follows
    bits_bundle: NDArray[np.float64]


def measure(
    session: Session,
    model: PyTorchModel,
    texts: Sequence[HeldoutText],
    *,
    chats: Chats,
    reference_max_abs: float,
    progress: Progress,
) -> Figures:
    """Return the distance of the bundle in `session` from `model` on `texts`, at least one."""
    agreements: list[Agreement] = []
    prefill_kl: list[NDArray[np.float64]] = []
    for number, text in enumerate(texts):
        progress("Comparing with PyTorch, token by token", number, len(texts))
        ids = text.ids[:-1]
        rows = feed_one_by_one(session, ids)
        agreements.append(compare(model.logits([ids])[0], rows, text.ids[1:]))
        prefill_kl.append(compare(rows, feed_in_pieces(session, ids), text.ids[1:]).kl)
    worst = max(prefill_kl, key=lambda kl: float(np.nan_to_num(kl, nan=np.inf).max()))
    return Figures(
        reference_max_abs=reference_max_abs,
        prefill_kl_max=float(worst.max()),
        prefill_worst_position=int(np.nan_to_num(worst, nan=np.inf).argmax()),
        greedy=[write_both(session, model, text) for text in texts[:GREEDY_TEXTS]],
        chats=chats,
        languages=language_parity(texts, agreements),
        **summed(agreements),
    )


def summed(agreements: Sequence[Agreement]) -> dict[str, Any]:
    """Return the figures that all positions of all texts give together."""
    kl, margin, shared, errors, means, bits_torch, bits_bundle = (
        np.concatenate([getattr(agreement, name) for agreement in agreements])
        for name in ("kl", "margin", "top_shared", "error_max", "error_mean", "bits_torch", "bits_bundle")
    )
    return {
        "tokens": len(kl),
        "kl_mean": float(kl.mean()),
        "kl_p99": float(np.quantile(kl, 0.99)),
        "kl_p999": float(np.quantile(kl, 0.999)),
        "kl_max": float(kl.max()),
        "logit_max_abs": float(errors.max()),
        "logit_mean_abs": float(means.mean()),
        "perplexity_ratio": float(2 ** (bits_bundle - bits_torch).mean()),
        "top1_agreement_percent": _percent(margin == 0),
        "near_tie_flips_percent": _percent((margin > 0) & (margin <= NEAR_TIE_NATS)),
        "clear_flips_percent": _percent(~(margin <= NEAR_TIE_NATS)),  # NaN counts as a flip
        "top5_overlap_percent": _percent(shared),
    }


def select_texts(
    heldout: Sequence[Document], tokenizer: Tokenizer, *, context: int, parameters: int
) -> list[HeldoutText]:
    """Return the first held-out texts of each language, about `TOKENS_PER_LANGUAGE` tokens of it.

    They are fewer where `PROOF_WORK` does not allow them for so many `parameters`. A document longer than the
    context or `LONGEST_TEXT` is cut there.

    Raises:
        DataError: no document holds prose.
    """
    texts: list[HeldoutText] = []
    tokens: Counter[str] = Counter()
    languages = len({document.language for document in heldout if document.text}) or 1
    limit = min(TOKENS_PER_LANGUAGE, int(PROOF_WORK / parameters / languages))
    length = min(context, LONGEST_TEXT)
    for document in heldout:
        if not document.text or tokens[document.language] >= limit:
            continue
        ids = [tokenizer.special(BOS), *tokenizer.encode(document.text), tokenizer.special(END)][:length]
        tokens[document.language] += len(ids)
        size = sum(len(tokenizer.token_bytes(token)) for token in ids)
        texts.append(
            HeldoutText(language=document.language, document=document.id, ids=tuple(ids), bytes=size)
        )
    if not texts:
        raise DataError("no held-out text; the proof needs documents that the model has not seen")
    return texts


def feed_one_by_one(session: Session, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits (T, V) of the bundle after each of T `ids`, fed one by one to an empty cache."""
    session.reset()
    return np.stack([session.feed([token]) for token in ids])


def feed_in_pieces(session: Session, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return the logits (T, V) of the bundle after each of T `ids`, fed in two pieces to an empty cache."""
    session.reset()
    half = len(ids) // 2
    parts = [piece for piece in (ids[:half], ids[half:]) if piece]
    return np.concatenate([session.feed_each(piece) for piece in parts])


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
        error_max=np.abs(expected - found).max(axis=1).astype(np.float64),
        error_mean=np.abs(expected - found).mean(axis=1, dtype=np.float64),
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


def language_parity(
    texts: Sequence[HeldoutText], agreements: Sequence[Agreement]
) -> dict[str, LanguageParity]:
    """Return bits per byte of each language, with their intervals over its documents."""
    languages = {}
    for code in sorted({text.language for text in texts}):
        of_it = [(text, part) for text, part in zip(texts, agreements, strict=True) if text.language == code]
        sizes = [text.bytes for text, _ in of_it]
        torch = [float(part.bits_torch.sum()) for _, part in of_it]
        bundle = [float(part.bits_bundle.sum()) for _, part in of_it]
        low, high = ratio_interval(bundle, torch)
        languages[code] = LanguageParity(
            bits_per_byte_torch=sum(torch) / sum(sizes),
            bits_per_byte_bundle=sum(bundle) / sum(sizes),
            increase_percent=100 * (sum(bundle) / sum(torch) - 1),
            tokens=sum(len(part.kl) for _, part in of_it),
            bytes=sum(sizes),
            documents=len(of_it),
            bits_per_byte_interval=ratio_interval(bundle, sizes),
            increase_percent_interval=(100 * (low - 1), 100 * (high - 1)),
        )
    return languages


def _percent(share: NDArray[Any]) -> float:
    return 100 * float(share.mean())
