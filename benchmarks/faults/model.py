"""The model of the subject: a tiny Llama-shaped byte model in which each operation can be replaced."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FFN = 48, 32, 2, 4, 2, 48
TOKENS = 14
EXPERTS = 4
ROTARY_BASE = 100.0


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def repeat_heads(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // KV_HEADS, dim=1)


def score(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2)) / math.sqrt(q.shape[-1])


def causal_mask(documents: Tensor) -> Tensor:
    """(B, 1, T, T), True where a position may look: at itself and back, inside its document."""
    length = documents.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    return (earlier & (documents[:, :, None] == documents[:, None, :]))[:, None]


def positions_in_documents(documents: Tensor) -> Tensor:
    """(B, T), counted from the first token of each document."""
    indices = torch.arange(documents.shape[1]).expand_as(documents)
    starts = torch.cat([torch.ones_like(documents[:, :1]), documents[:, 1:] != documents[:, :-1]], dim=1)
    return indices - (indices * starts).cummax(1).values


def rotary_angles(documents: Tensor) -> Tensor:
    half = WIDTH // HEADS // 2
    frequency = ROTARY_BASE ** (-torch.arange(half, dtype=torch.float32) / half)
    return torch.arange(documents.shape[1], dtype=torch.float32)[:, None] * frequency


def residual(x: Tensor, change: Tensor) -> Tensor:
    return x + change


def combine(probabilities: Tensor, outputs: Tensor) -> Tensor:
    return probabilities[..., None] * outputs


@dataclass
class Operations:
    """What the model is made of; a fault replaces one of them."""

    norm: object = rms_norm
    rope: object = rotate
    angles: object = rotary_angles
    positions: object = positions_in_documents  # used by learned positions only
    score: object = score
    softmax: object = staticmethod(lambda scores: scores.softmax(-1))
    repeat: object = repeat_heads
    gate: object = F.silu
    embed: object = F.embedding
    drop: object = F.dropout  # (x, probability, training)
    residual: object = residual
    combine: object = combine  # of an expert's output with the probability of its router
    between_layers: object = staticmethod(lambda x: x)
    heads_out: object = staticmethod(lambda x: x)  # (B, H, T, D), after attention
    block_out: object = staticmethod(lambda x: x)
    hidden_out: object = staticmethod(lambda x: x)  # what the head sees
    logits_out: object = staticmethod(lambda x: x)
    mask: object = causal_mask


def projections() -> tuple[nn.Linear, nn.Linear, nn.Linear]:
    """The up, gate and down projection of a gated feed-forward network."""
    up, gate = nn.Linear(WIDTH, FFN, bias=False), nn.Linear(WIDTH, FFN, bias=False)
    return up, gate, nn.Linear(FFN, WIDTH, bias=False)


class Expert(nn.Module):
    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations
        self.up, self.gate, self.down = projections()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.operations.gate(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Each token goes to the one expert that its router likes best; `auxiliary` balances them."""

    def __init__(self, operations: Operations) -> None:
        super().__init__()
        self.operations = operations
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList(Expert(operations) for _ in range(EXPERTS))
        self.auxiliary = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        probabilities = self.router(x).softmax(-1)
        best, chosen = probabilities.max(-1)
        share = F.one_hot(chosen, EXPERTS).to(x.dtype).mean((0, 1))
        self.auxiliary = EXPERTS * (share * probabilities.mean((0, 1))).sum()
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = chosen == number
            if bool(rows.any()):
                out[rows] = self.operations.combine(best[rows], expert(x[rows]))
        return out


class Block(nn.Module):
    def __init__(self, operations: Operations, dropout: float, mixture: bool) -> None:
        super().__init__()
        self.operations = operations
        self.dropout = dropout
        kv_width = WIDTH // HEADS * KV_HEADS
        self.attention_norm = nn.Parameter(torch.ones(WIDTH))
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, kv_width, bias=False)
        self.v = nn.Linear(WIDTH, kv_width, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)
        self.ffn_norm = nn.Parameter(torch.ones(WIDTH))
        self.mixture = Mixture(operations) if mixture else None
        if not mixture:
            self.up, self.gate, self.down = projections()

    def forward(self, x: Tensor, mask: Tensor, angle: Tensor) -> Tensor:
        do, (B, T, _) = self.operations, x.shape
        h = do.norm(x, self.attention_norm)
        q, k, v = (
            part(h).view(B, T, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q, k = do.rope(q, angle), do.rope(k, angle)
        k, v = do.repeat(k), do.repeat(v)
        weights = do.softmax(do.score(q, k).masked_fill(~mask, -1e30))
        heads = do.heads_out(weights @ v).transpose(1, 2).reshape(B, T, WIDTH)
        x = do.residual(x, do.drop(self.o(heads), self.dropout, self.training))
        h = do.norm(x, self.ffn_norm)
        x = do.residual(x, do.drop(self.feed_forward(h), self.dropout, self.training))
        return do.block_out(x)

    def feed_forward(self, h: Tensor) -> Tensor:
        if self.mixture is not None:
            return self.mixture(h)
        return self.down(self.operations.gate(self.gate(h)) * self.up(h))


class ByteModel(nn.Module):
    """`learned_positions` adds an embedding of the position to that of the token, in place of rotation."""

    def __init__(
        self,
        *,
        tied: bool = True,
        dropout: float = 0.0,
        mixture: bool = False,
        learned_positions: bool = False,
    ) -> None:
        super().__init__()
        self.operations = Operations()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position_embedding = nn.Embedding(TOKENS, WIDTH) if learned_positions else None
        if learned_positions:
            self.operations.rope = lambda x, angle: x
        self.blocks = nn.ModuleList(Block(self.operations, dropout, mixture) for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.08)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, documents: Tensor) -> Tensor:
        do = self.operations
        mask, angle = do.mask(documents), do.angles(documents)
        x = do.embed(ids, self.embedding.weight)
        if self.position_embedding is not None:
            x = x + self.position_embedding(do.positions(documents))
        for number, block in enumerate(self.blocks):
            x = self.run_block(block, do.between_layers(x) if number else x, mask, angle)
        return do.logits_out(self.head(do.hidden_out(do.norm(x, self.norm))))

    def run_block(self, block: Block, x: Tensor, mask: Tensor, angle: Tensor) -> Tensor:
        return block(x, mask, angle)
