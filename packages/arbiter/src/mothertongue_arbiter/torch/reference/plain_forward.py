"""A decoder of the Llama and Qwen3 family, written out plainly: the second opinion about a forward pass.

RMSNorm (arXiv:1910.07467), rotary positions (arXiv:2104.09864), grouped queries (arXiv:2305.13245), SwiGLU
(arXiv:2002.05202). One head at a time, no fused operation. Weights go by their Hugging Face names.

Shapes: B rows, T tokens, D width, d head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

KINDS = (None, "llama", "mistral", "qwen2", "qwen3")
EMBEDDING, FINAL_NORM, HEAD = "model.embed_tokens", "model.norm", "lm_head"


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """What a transformers config says about such a decoder."""

    layers: int
    heads: int
    kv_heads: int
    eps: float
    theta: float
    head_width: int
    pairing: str  # "half": (x[i], x[i + d/2]) turn together; "neighbours": (x[2i], x[2i + 1])
    tied: bool


def architecture_of(values: Mapping[str, Any]) -> Architecture:
    """Read the keys of a transformers config.

    Raises:
        ValueError: something is missing, or it describes another kind of decoder.
    """
    rope = values.get("rope_parameters") or values.get("rope_scaling") or {}
    theta = values.get("rope_theta", rope.get("rope_theta"))
    other = {
        "model_type": values.get("model_type") not in KINDS,
        "hidden_act": values.get("hidden_act", "silu") not in ("silu", "swish"),
        "rope_type": rope.get("rope_type", rope.get("type", "default")) != "default",
        "partial_rotary_factor": values.get("partial_rotary_factor", 1.0) != 1.0,
        "sliding_window": bool(values.get("sliding_window")) and values.get("use_sliding_window", True),
    }
    unlike = [name for name, differs in other.items() if differs]
    if unlike:
        raise ValueError(f"another kind of decoder ({', '.join(unlike)})")
    needed = {"num_hidden_layers", "num_attention_heads", "rms_norm_eps"}
    missing = sorted(needed - set(values)) + (["rope_theta"] if theta is None else [])
    if "head_dim" not in values and "hidden_size" not in values:
        missing.append("head_dim")
    if missing:
        raise ValueError(f"no {', '.join(missing)}")
    heads = int(values["num_attention_heads"])
    return Architecture(
        layers=int(values["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        eps=float(values["rms_norm_eps"]),
        theta=float(theta),
        head_width=int(values.get("head_dim") or values["hidden_size"] // heads),
        pairing=str(values.get("rope_pairing", "half")),
        tied=bool(values.get("tie_word_embeddings", False)),
    )


def plain_forward(
    ids: Tensor, weights: Mapping[str, Tensor], shape: Architecture, *, seen: Tensor, positions: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the logits (B, T, V) of `ids` (B, T), and what each module on the way returns, by its name.

    `seen` (B, T, T) is True where the first position looks at the second; `positions` is (B, T).
    """
    trace: dict[str, Tensor] = {}

    def linear(x: Tensor, name: str) -> Tensor:
        y = torch.einsum("...i,oi->...o", x, weights[f"{name}.weight"])
        if f"{name}.bias" in weights:
            y = y + weights[f"{name}.bias"]
        trace[name] = y
        return y

    def norm(x: Tensor, name: str) -> Tensor:
        mean_square = (x * x).sum(-1, keepdim=True) / x.shape[-1]
        trace[name] = x / torch.sqrt(mean_square + shape.eps) * weights[f"{name}.weight"]
        return trace[name]

    def heads(x: Tensor, name: str, count: int, norm_name: str | None) -> list[Tensor]:
        """Return the `count` heads of a projection, each (B, T, d)."""
        parts = list(torch.split(linear(x, name), shape.head_width, dim=-1))
        assert len(parts) == count
        if norm_name is not None and f"{norm_name}.weight" in weights:
            parts = [norm(part, norm_name) for part in parts]
            del trace[norm_name]
        return parts

    x = weights[f"{EMBEDDING}.weight"][ids]
    trace[EMBEDDING] = x
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        attention, mlp = f"{block}.self_attn", f"{block}.mlp"
        h = norm(x, f"{block}.input_layernorm")
        queries = heads(h, f"{attention}.q_proj", shape.heads, f"{attention}.q_norm")
        keys = heads(h, f"{attention}.k_proj", shape.kv_heads, f"{attention}.k_norm")
        values = heads(h, f"{attention}.v_proj", shape.kv_heads, None)
        mixed = []
        for number, query in enumerate(queries):
            source = number // (shape.heads // shape.kv_heads)
            q, k = (turned(part, positions, shape) for part in (query, keys[source]))
            scores = torch.einsum("btd,bsd->bts", q, k) / math.sqrt(shape.head_width)
            scores = torch.where(seen, scores, -torch.inf)
            shares = torch.exp(scores - scores.amax(-1, keepdim=True))
            shares = shares / shares.sum(-1, keepdim=True)
            mixed.append(torch.einsum("bts,bsd->btd", shares, values[source]))
        x = x + linear(torch.cat(mixed, dim=-1), f"{attention}.o_proj")
        h = norm(x, f"{block}.post_attention_layernorm")
        gate, up = linear(h, f"{mlp}.gate_proj"), linear(h, f"{mlp}.up_proj")
        x = x + linear(gate / (1 + torch.exp(-gate)) * up, f"{mlp}.down_proj")
        trace[block] = x
    head = EMBEDDING if shape.tied else HEAD
    logits = torch.einsum("btd,vd->btv", norm(x, FINAL_NORM), weights[f"{head}.weight"])
    return logits, trace


def turned(x: Tensor, positions: Tensor, shape: Architecture) -> Tensor:
    """Turn each pair of x (B, T, d) by position * theta^(-2i/d)."""
    half = shape.head_width // 2
    rates = shape.theta ** (-torch.arange(half, device=x.device, dtype=x.dtype) * 2 / shape.head_width)
    angles = positions[:, :, None].to(x.dtype) * rates  # (B, T, d/2)
    cos, sin = torch.cos(angles), torch.sin(angles)
    if shape.pairing == "half":
        one, two = x[..., :half], x[..., half:]
        return torch.cat([one * cos - two * sin, one * sin + two * cos], dim=-1)
    one, two = x[..., 0::2], x[..., 1::2]
    return torch.stack([one * cos - two * sin, one * sin + two * cos], dim=-1).flatten(-2)


def weight_names(shape: Architecture) -> tuple[list[str], list[str]]:
    """Return the names of the weights that such a decoder has, and of those that it may have."""
    needed, possible = [f"{EMBEDDING}.weight", f"{FINAL_NORM}.weight"], []
    if not shape.tied:
        needed.append(f"{HEAD}.weight")
    for layer in range(shape.layers):
        block = f"model.layers.{layer}"
        attention = [f"{block}.self_attn.{part}_proj" for part in "qkvo"]
        mlp = [f"{block}.mlp.{part}_proj" for part in ("gate", "up", "down")]
        norms = [f"{block}.input_layernorm", f"{block}.post_attention_layernorm"]
        needed += [f"{name}.weight" for name in (*attention, *mlp, *norms)]
        possible += [f"{block}.self_attn.{part}_norm.weight" for part in "qk"]
        possible += [f"{name}.bias" for name in (*attention, *mlp)]
    return needed, possible
