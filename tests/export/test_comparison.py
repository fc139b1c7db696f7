import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mothertongue.errors import DataError
from mothertongue_export.comparison import (
    PROOF_WORK,
    HeldoutText,
    compare,
    feed_one_by_one,
    language_parity,
    log_softmax,
    measure,
    select_texts,
    write_both,
)
from mothertongue_export.parity import Chats
from mothertongue_trainer.document import Document
from mothertongue_trainer.progress import silent

V = 50
NO_CHATS = Chats(asked=0, ended=0, endless=0, limit_tokens=64)


def random_logits(rows: int, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    return np.random.default_rng(seed).normal(scale=3, size=(rows, V)).astype(np.float32)


def test_agreement_is_what_torch_computes() -> None:
    expected, found = random_logits(150, 0), random_logits(150, 0) + random_logits(150, 1) / 10
    following = np.random.default_rng(2).integers(V, size=150).tolist()
    agreement = compare(expected, found, following)
    one, two = (torch.log_softmax(torch.from_numpy(part).double(), dim=1) for part in (expected, found))
    kl = torch.nn.functional.kl_div(two, one, log_target=True, reduction="none").sum(dim=1)
    np.testing.assert_allclose(agreement.kl, kl, atol=1e-9)
    labels = torch.tensor(following)
    for bits, logs in ((agreement.bits_torch, one), (agreement.bits_bundle, two)):
        nats = torch.nn.functional.nll_loss(logs, labels, reduction="none")
        np.testing.assert_allclose(bits, nats / math.log(2), atol=1e-9)
    shared = [
        len(set(a.tolist()) & set(b.tolist())) / 5
        for a, b in zip(one.topk(5).indices, two.topk(5).indices, strict=True)
    ]
    np.testing.assert_allclose(agreement.top_shared, shared)
    flipped = (one.argmax(dim=1) != two.argmax(dim=1)).numpy()
    assert 0 < flipped.sum() < 150
    np.testing.assert_array_equal(agreement.margin > 0, flipped)


def test_the_margin_is_what_pytorch_loses_by_the_other_choice() -> None:
    expected = np.log(np.array([[0.5, 0.4, 0.1, 1e-9, 1e-9, 1e-9]], np.float32))
    found = np.log(np.array([[0.4, 0.5, 0.1, 1e-9, 1e-9, 1e-9]], np.float32))
    agreement = compare(expected, found, [2])
    assert agreement.margin[0] == pytest.approx(math.log(0.5 / 0.4), rel=1e-5)
    assert agreement.bits_torch[0] == pytest.approx(math.log2(10), rel=1e-5)


def test_probabilities_of_huge_logits_are_finite() -> None:
    assert np.exp(log_softmax(np.array([1e4, 0.0, -1e4], np.float32))).tolist() == [1.0, 0.0, 0.0]


class Letters:
    """A tokenizer of one token for each byte, counted from 10."""

    def special(self, token: str) -> int:
        return {"<|bos|>": 0, "<|end|>": 4}[token]

    def encode(self, text: str) -> list[int]:
        return [10 + byte for byte in text.encode()]

    def token_bytes(self, token: int) -> bytes:
        return bytes([token - 10]) if token >= 10 else b""


def document(text: str, language: str = "bn") -> Document:
    return Document(id=text, language=language, component="heldout", text=text)


def test_texts_have_their_ends_and_the_bytes_of_what_is_predicted() -> None:
    texts = select_texts([document("নদী"), document("sky", "en")], Letters(), context=64, parameters=1)  # type: ignore[arg-type]
    assert [(text.language, text.bytes) for text in texts] == [("bn", 9), ("en", 3)]
    assert texts[1].ids == (0, 10 + ord("s"), 10 + ord("k"), 10 + ord("y"), 4)


def test_a_text_longer_than_the_context_is_cut_with_its_bytes() -> None:
    (text,) = select_texts([document("a" * 100)], Letters(), context=20, parameters=1)  # type: ignore[arg-type]
    assert len(text.ids) == 20
    assert text.bytes == 19


def test_a_large_model_is_proved_on_fewer_tokens() -> None:
    documents = [document("a" * 98 + str(number)) for number in range(10, 60)]
    small, large = (
        select_texts(documents, Letters(), context=200, parameters=parameters)  # type: ignore[arg-type]
        for parameters in (1_000_000, int(PROOF_WORK / 500))
    )
    assert len(small) == 50
    assert 500 <= sum(len(text.ids) for text in large) < 620


def test_no_prose_at_all_is_refused() -> None:
    with pytest.raises(DataError, match="no held-out text"):
        select_texts([document("")], Letters(), context=20, parameters=1)  # type: ignore[arg-type]


class Chooser:
    """A session and a model in one: after n ids it prefers token n, from `flip` on by `margin` another."""

    context = 64

    def __init__(self, flip: int = 1000, margin: float = 0.0) -> None:
        self.flip, self.margin, self.position = flip, margin, 0

    def row(self, ids: int, flips: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
        row = np.zeros(V, np.float32)
        row[ids % V] = 5
        row[0] = 5 + self.margin if flips and ids >= self.flip else 5 - self.margin
        return row

    def reset(self) -> None:
        self.position = 0

    def feed(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        self.position += len(ids)
        return self.row(self.position, flips=True)

    def feed_each(self, ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.stack([self.feed([token]) for token in ids])

    def logits(self, ids: Sequence[Sequence[int]]) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.stack([self.row(n, flips=False) for n in range(1, len(ids[0]) + 1)])[None]


@pytest.mark.parametrize(
    ("flip", "margin", "tokens", "difference"),
    [(1000, 1.0, 24, "none"), (12, 0.05, 4, "near-tie"), (12, 1.0, 4, "clear")],
)
def test_greedy_text_counts_up_to_the_first_difference_and_says_its_kind(
    flip: int, margin: float, tokens: int, difference: str
) -> None:
    both: Any = Chooser(flip, margin)
    text = write_both(
        both, both, HeldoutText(language="bn", document="one", ids=tuple(range(10, 30)), bytes=20)
    )
    assert (text.tokens, text.difference) == (tokens, difference)
    assert list(text.ids) == list(range(8, 8 + tokens))


def test_feeding_one_by_one_starts_from_an_empty_cache() -> None:
    session: Any = Chooser()
    session.feed([1, 2, 3])
    rows = feed_one_by_one(session, [7, 7, 7])
    assert rows[:, 1:].argmax(axis=1).tolist() == [0, 1, 2]  # it prefers token n after n ids


@pytest.mark.parametrize(("margin", "near", "clear"), [(0.0, 0, 0), (0.05, 45, 0), (1.0, 0, 45)])
def test_figures_tell_near_ties_from_clear_flips(margin: float, near: float, clear: float) -> None:
    """Of 20 predictions, the last 9 take another token, which PyTorch likes less by `margin`."""
    both: Any = Chooser(12 if margin else 1000, margin)
    text = HeldoutText(language="bn", document="one", ids=tuple(range(10, 31)), bytes=40)
    figures = measure(both, both, [text], chats=NO_CHATS, reference_max_abs=0.0, progress=silent)
    assert figures.tokens == 20
    assert (figures.near_tie_flips_percent, figures.clear_flips_percent) == (near, clear)
    assert figures.top1_agreement_percent == pytest.approx(100 - near - clear)
    assert figures.prefill_kl_max == 0
    nats = 0.0
    for place, following in enumerate(text.ids[1:], start=1):
        row = both.row(place, flips=False).astype(np.float64)
        nats += math.log(np.exp(row).sum()) - row[following]
    assert figures.perplexity_ratio == pytest.approx(
        math.exp(np.mean([_nats(both, n, flips=True) - _nats(both, n, flips=False) for n in range(1, 21)]))
    )
    assert figures.languages["bn"].bits_per_byte_torch == pytest.approx(nats / math.log(2) / 40)


def _nats(both: Chooser, place: int, *, flips: bool) -> float:
    row = both.row(place, flips=flips).astype(np.float64)
    return float(math.log(np.exp(row).sum()) - row[10 + place])


def test_the_interval_of_a_language_is_over_its_documents() -> None:
    """Two texts alike have an interval of no width; a third that is worse widens it upwards."""
    texts = [HeldoutText(language="bn", document="one", ids=tuple(range(10, 31)), bytes=40)] * 3
    found = random_logits(20, 0)
    same = compare(found, found, texts[0].ids[1:])
    worse = compare(found, found * 0.5, texts[0].ids[1:])
    alike = language_parity(texts, [same] * 3)["bn"]
    assert alike.increase_percent_interval == pytest.approx((0.0, 0.0))
    assert alike.bits_per_byte_interval == pytest.approx((alike.bits_per_byte_torch,) * 2)
    mixed = language_parity(texts, [same, same, worse])["bn"]
    low, high = mixed.increase_percent_interval
    assert low == pytest.approx(min(0.0, low))
    assert low <= mixed.increase_percent <= high
    assert mixed.documents == 3
