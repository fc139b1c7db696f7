"""An independent forward of the subject's weights: one row and one head at a time, in einsum and loops.

It shares no operation with model.py. It is written from what the model is declared to be: RMSNorm before each
half of a block, grouped-query attention with rotary positions, a gated feed-forward network, a tied head.
"""

import math

import torch
from torch import Tensor, nn

HEADS, KV_HEADS, EPSILON, BASE = 4, 2, 1e-6, 100.0


def plain_forward(model: nn.Module, ids: Tensor, documents: Tensor) -> Tensor:
    """Return logits (B, T, V). Large scores overflow: it is meant for a model near its start."""
    return torch.stack(
        [_row(model, row, number) for row, number in zip(ids.tolist(), documents.tolist(), strict=True)]
    )


def _row(model: nn.Module, ids: list[int], documents: list[int]) -> Tensor:
    weights = dict(model.named_parameters(remove_duplicate=False))
    x = weights["embedding.weight"][torch.tensor(ids)]
    learned = weights.get("position_embedding.weight")
    if learned is not None:
        starts = {number: documents.index(number) for number in set(documents)}
        x = x + learned[torch.tensor([i - starts[number] for i, number in enumerate(documents)])]
    depth = 1 + max(int(name.split(".")[1]) for name in weights if name.startswith("blocks."))
    for layer in range(depth):
        block = {name.removeprefix(f"blocks.{layer}."): weight for name, weight in weights.items()}
        h = _normed(x, block["attention_norm"])
        x = x + _attention(h, block, documents, rotary=learned is None) @ block["o.weight"].mT
        x = x + _feed_forward(_normed(x, block["ffn_norm"]), block)
    return _normed(x, weights["norm"]) @ weights["head.weight"].mT


def _normed(x: Tensor, gain: Tensor) -> Tensor:
    return gain * x / (torch.linalg.vector_norm(x, dim=-1, keepdim=True) ** 2 / x.shape[-1] + EPSILON) ** 0.5


def _attention(h: Tensor, block: dict[str, Tensor], documents: list[int], *, rotary: bool) -> Tensor:
    queries, keys, values = (h @ block[f"{name}.weight"].mT for name in ("q", "k", "v"))
    size = queries.shape[-1] // HEADS
    numbered = list(enumerate(documents))
    pairs = [[float(s <= t and other == own) for s, other in numbered] for t, own in numbered]
    seen = torch.tensor(pairs, dtype=h.dtype)
    heads = []
    for head in range(HEADS):
        group = head // (HEADS // KV_HEADS)
        q, k, v = (
            part[:, i * size : (i + 1) * size]
            for part, i in ((queries, head), (keys, group), (values, group))
        )
        if rotary:
            q, k = _rotated(q), _rotated(k)
        weights = torch.exp(torch.einsum("td,sd->ts", q, k) / math.sqrt(size)) * seen
        heads.append(torch.einsum("ts,sd->td", weights / weights.sum(1, keepdim=True), v))
    return torch.cat(heads, dim=-1)


def _rotated(x: Tensor) -> Tensor:
    """Rotate each pair of dimensions (i, i + half) by position * BASE ** (-i / half), as complex numbers."""
    half = x.shape[-1] // 2
    angles = [[t * BASE ** (-i / half) for i in range(half)] for t in range(len(x))]
    turn = torch.polar(torch.ones(len(x), half, dtype=x.dtype), torch.tensor(angles, dtype=x.dtype))
    turned = torch.complex(x[:, :half], x[:, half:]) * turn
    return torch.cat([turned.real, turned.imag], dim=-1)


def _feed_forward(h: Tensor, block: dict[str, Tensor]) -> Tensor:
    if "up.weight" in block:
        return _gated(h, block, "")
    probabilities = torch.softmax(h @ block["mixture.router.weight"].mT, dim=-1)
    chosen = probabilities.argmax(-1).tolist()
    return torch.stack(
        [
            probabilities[t, expert] * _gated(h[t], block, f"mixture.experts.{expert}.")
            for t, expert in enumerate(chosen)
        ]
    )


def _gated(h: Tensor, block: dict[str, Tensor], prefix: str) -> Tensor:
    gate, up, down = (block[f"{prefix}{name}.weight"] for name in ("gate", "up", "down"))
    opened = h @ gate.mT
    return (opened / (1 + torch.exp(-opened)) * (h @ up.mT)) @ down.mT
