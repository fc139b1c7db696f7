"""The model: a decoder of the Qwen3 family in one file, with the parameter names of Hugging Face.

A checkpoint is this module's `state_dict` as it is: transformers, vLLM and llama.cpp need no converter.

Shapes: B sequences, T tokens, D width, H query heads, K key/value heads, d head width, V vocabulary.

    tokens (B, T) -> embed -> [norm -> attention -> +, norm -> SwiGLU -> +] x layers -> norm -> head (B, T, V)

Weights stay float32 and every product is computed in `compute_dtype`: a layer casts its weight on use, so
that the master copy is never rounded and its gradient arrives in float32.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mothertongue_trainer.recipe import ModelConfig

IGNORED = -100  # a target at which nothing is learned
INIT_STD = 0.02


class Linear(nn.Linear):
    """A projection without bias that computes in the dtype of its input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, bias=False)

    def forward(self, input: Tensor) -> Tensor:
        return F.linear(input, self.weight.to(input.dtype))


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis, the mean square in at least float32 (arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(self.weight.dtype)
        return F.rms_norm(wide, self.weight.shape, self.weight, self.eps).to(x.dtype)


def rotary_tables(length: int, width: int, theta: float) -> tuple[Tensor, Tensor]:
    """Return cos and sin (T, d) of position x theta^(-2i/d), each half of d alike (arXiv:2104.09864)."""
    frequencies = theta ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies).repeat(1, 2)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn each pair (x[i], x[i + d/2]) of x (B, heads, T, d) by the angle of its position."""
    left, right = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-right, left), dim=-1) * sin


class Attention(nn.Module):
    """Grouped-query attention with a norm on each query and key head."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_width = config.head_width
        self.q_proj = Linear(config.width, config.heads * config.head_width)
        self.k_proj = Linear(config.width, config.kv_heads * config.head_width)
        self.v_proj = Linear(config.width, config.kv_heads * config.head_width)
        self.o_proj = Linear(config.heads * config.head_width, config.width)
        self.q_norm = RMSNorm(config.head_width, config.rms_norm_eps)
        self.k_norm = RMSNorm(config.head_width, config.rms_norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        B, T, _ = x.shape
        heads = (B, T, -1, self.head_width)
        q = rotate(self.q_norm(self.q_proj(x).view(heads)).transpose(1, 2), cos, sin)  # (B, H, T, d)
        k = rotate(self.k_norm(self.k_proj(x).view(heads)).transpose(1, 2), cos, sin)  # (B, K, T, d)
        v = self.v_proj(x).view(heads).transpose(1, 2)  # (B, K, T, d)
        if x.dtype == torch.bfloat16 and x.device.type == "cpu":
            # torch's backward of attention takes three times as long in bfloat16 as in float32 on a CPU.
            q, k, v = q.float(), k.float(), v.float()
        y = F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=True)
        attended: Tensor = self.o_proj(y.to(x.dtype).transpose(1, 2).reshape(B, T, -1))
        return attended


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (arXiv:2002.05202)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = Linear(config.width, config.ffn_width)
        self.up_proj = Linear(config.width, config.ffn_width)
        self.down_proj = Linear(config.ffn_width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return projected


class Block(nn.Module):
    """One layer: attention, then the feed-forward, each on a normalised copy of the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.width, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.width, config.rms_norm_eps)
        self.mlp = SwiGLU(config)

    def forward(
        self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the residual stream (B, T, D) after this layer, or only its `positions`, (1, N, D)."""
        x = x + self.self_attn(self.input_layernorm(x), cos, sin, mask)
        if positions is not None:
            x = x.flatten(0, 1).index_select(0, positions).unsqueeze(0)
        fed: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return fed


class Trunk(nn.Module):
    """Everything below the head; Hugging Face calls it `model`."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, config.width)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width, config.rms_norm_eps)


class Qwen3(nn.Module):
    """A language model: `model(tokens)` gives logits, `model.loss(...)` what training minimises.

    `config` and `vocabulary` give the shape, `seed` the initial weights; `compute_dtype` is the precision of
    the products. Logits come in the dtype of the weights.
    """

    cos: Tensor  # (context, d)
    sin: Tensor

    def __init__(
        self,
        config: ModelConfig,
        vocabulary: int,
        *,
        seed: int = 0,
        compute_dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.config, self.vocabulary, self.compute_dtype = config, vocabulary, compute_dtype
        self.model = Trunk(config, vocabulary)
        if not config.tied_embeddings:
            self.lm_head = Linear(config.width, vocabulary)
        cos, sin = rotary_tables(config.context, config.head_width, config.rope_theta)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self._initialise(torch.Generator().manual_seed(seed))

    def _initialise(self, generator: torch.Generator) -> None:
        """Draw every matrix from N(0, 0.02), those that write to the residual stream from a narrower one."""
        residual_std = INIT_STD / math.sqrt(2 * self.config.layers)  # GPT-2: keeps the stream's variance
        for name, weight in self.named_parameters():
            if weight.ndim == 2:
                writes = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(weight, std=residual_std if writes else INIT_STD, generator=generator)

    @property
    def parameter_count(self) -> int:
        """The number of trainable values; a tied embedding counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def head_weight(self) -> Tensor:
        """The (V, D) matrix that turns hidden states into logits."""
        return self.model.embed_tokens.weight if self.config.tied_embeddings else self.lm_head.weight

    def hidden(
        self, tokens: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the final hidden states (B, T, D) of `tokens` (B, T).

        A position attends to itself and to earlier ones of its document. Rotary positions are relative, so a
        document gives the same states wherever it lies in a row. Without `documents` a row is one document.

        With `positions` (N,) of the flattened rows only their states are returned, (1, N, D): after the last
        attention no position looks at another, so the rest of the last layer is spared for all others.
        """
        T = tokens.shape[1]
        assert self.config.context >= T, f"{T} tokens in a row, the context is {self.config.context}"
        mask = None if documents is None else same_document_mask(documents)
        cos, sin = (table[:T].to(self.compute_dtype) for table in (self.cos, self.sin))
        x = self.model.embed_tokens(tokens).to(self.compute_dtype)
        for layer in self.model.layers[:-1]:
            x = layer(x, cos, sin, mask)
        normalised: Tensor = self.model.norm(self.model.layers[-1](x, cos, sin, mask, positions))
        return normalised

    def forward(
        self, tokens: Tensor, documents: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        """Return the logits (B, T, V) of `tokens` (B, T), in the dtype of the weights.

        With `positions` (N,) of the flattened rows only those logits are computed: (1, N, V).
        """
        hidden = self.hidden(tokens, documents, positions)
        return F.linear(hidden, self.head_weight.to(hidden.dtype)).to(self.head_weight.dtype)

    def loss(self, tokens: Tensor, targets: Tensor, documents: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy, in nats, over the positions of `targets` (B, T) that are learned.

        Where the target is -100 nothing is learned, and neither head nor last feed-forward is computed: in
        chat rows that is most positions, and these two are half of a small model's arithmetic.
        """
        targets = targets.flatten()
        learned = (targets != IGNORED).nonzero().squeeze(1)
        logits = self(tokens, documents, learned).squeeze(0)
        return F.cross_entropy(logits, targets.index_select(0, learned), reduction="sum")


def same_document_mask(documents: Tensor) -> Tensor:
    """Return the (B, 1, T, T) mask of which position may look at which: an earlier one of its document."""
    same = documents[:, None, :, None] == documents[:, None, None, :]
    return same & torch.ones(same.shape[-2:], dtype=torch.bool, device=same.device).tril()


def huggingface_config(config: ModelConfig, vocabulary: int) -> dict[str, Any]:
    """Return the config.json by which transformers and its kin rebuild the model.

    The ids are those of the special tokens, the same in every Mothertongue tokenizer. `rope_parameters` is
    how transformers 5 spells what older readers find in `rope_theta`.
    """
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": config.width,
        "intermediate_size": config.ffn_width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_width,
        "max_position_embeddings": config.context,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "tie_word_embeddings": config.tied_embeddings,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "initializer_range": INIT_STD,
        "use_sliding_window": False,
        "bos_token_id": 0,
        "eos_token_id": 4,
        "pad_token_id": 5,
        "torch_dtype": "float32",
    }


def config_from_huggingface(values: dict[str, Any]) -> tuple[ModelConfig, int]:
    """Return the shape and the vocabulary that `huggingface_config` wrote."""
    config = ModelConfig(
        layers=values["num_hidden_layers"],
        width=values["hidden_size"],
        heads=values["num_attention_heads"],
        kv_heads=values["num_key_value_heads"],
        head_width=values["head_dim"],
        ffn_width=values["intermediate_size"],
        context=values["max_position_embeddings"],
        tied_embeddings=values["tie_word_embeddings"],
        rope_theta=values["rope_theta"],
        rms_norm_eps=values["rms_norm_eps"],
    )
    return config, values["vocab_size"]
