"""The subject of the fault zoo: a tiny Llama-shaped byte model, its data, and its training step, all sound.

Each operation of the model is an attribute of `Operations`, each part of a step a method of `ZooRun`, so that
a fault is one replaced attribute. The faults are in faults.py, the healthy variants in healthy.py.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mothertongue_arbiter import Declared

END_OF_TEXT = 1
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, FFN = 48, 32, 2, 4, 2, 48
ROWS, TOKENS = 4, 14
LEARNING_RATE = 1e-3


def rms_norm(x: Tensor, gain: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gain


def rotate(x: Tensor, angle: Tensor) -> Tensor:
    one, two = x.chunk(2, dim=-1)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.cat([one * cos - two * sin, two * cos + one * sin], dim=-1)


def repeat_heads(x: Tensor) -> Tensor:
    return x.repeat_interleave(HEADS // KV_HEADS, dim=1)


def causal_mask(documents: Tensor) -> Tensor:
    """(B, 1, T, T), True where a position may look."""
    length = documents.shape[1]
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    return (earlier & (documents[:, :, None] == documents[:, None, :]))[:, None]


def sum_of_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


@dataclass
class Operations:
    """What the model is made of; a fault replaces one of them."""

    norm: object = rms_norm
    rope: object = rotate
    softmax: object = staticmethod(lambda scores: scores.softmax(-1))
    repeat: object = repeat_heads
    gate: object = F.silu
    embed: object = F.embedding
    between_layers: object = staticmethod(lambda x: x)
    heads_out: object = staticmethod(lambda x: x)  # (B, H, T, D), after attention
    block_out: object = staticmethod(lambda x: x)
    mask: object = causal_mask


class Block(nn.Module):
    def __init__(self, operations: Operations, dropout: float) -> None:
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
        self.up = nn.Linear(WIDTH, FFN, bias=False)
        self.gate = nn.Linear(WIDTH, FFN, bias=False)
        self.down = nn.Linear(FFN, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor, angle: Tensor) -> Tensor:
        do, (B, T, _) = self.operations, x.shape
        h = do.norm(x, self.attention_norm)
        q, k, v = (
            part(h).view(B, T, -1, WIDTH // HEADS).transpose(1, 2) for part in (self.q, self.k, self.v)
        )
        q, k = do.rope(q, angle), do.rope(k, angle)
        k, v = do.repeat(k), do.repeat(v)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        weights = do.softmax(scores.masked_fill(~mask, float("-inf")))
        heads = do.heads_out(weights @ v).transpose(1, 2).reshape(B, T, WIDTH)
        x = x + F.dropout(self.o(heads), self.dropout, self.training)
        h = do.norm(x, self.ffn_norm)
        x = x + F.dropout(self.down(do.gate(self.gate(h)) * self.up(h)), self.dropout, self.training)
        return do.block_out(x)


class ByteModel(nn.Module):
    def __init__(self, *, tied: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.operations = Operations()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(self.operations, dropout) for _ in range(LAYERS))
        self.norm = nn.Parameter(torch.ones(WIDTH))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.08)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor, documents: Tensor) -> Tensor:
        do = self.operations
        mask = do.mask(documents)
        half = WIDTH // HEADS // 2
        frequency = 100.0 ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.arange(ids.shape[1], dtype=torch.float32)[:, None] * frequency
        x = do.embed(ids, self.embedding.weight)
        for block in self.blocks:
            x = self.run_block(block, do.between_layers(x), mask, angle)
        return self.head(do.norm(x, self.norm))

    def run_block(self, block: Block, x: Tensor, mask: Tensor, angle: Tensor) -> Tensor:
        return block(x, mask, angle)


@dataclass
class ZooRun:
    """A whole training run, as a user would write one, with every member that the arbiter can use."""

    tied: bool = True
    dropout: float = 0.0
    accumulation: int = 1
    declared: Declared = None
    model: ByteModel = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(7)
        self.model = ByteModel(tied=self.tied, dropout=self.dropout)
        self.declared = self.declared or Declared(
            vocabulary=VOCABULARY,
            isolated_documents=True,
            tied=(("embedding.weight", "head.weight"),) if self.tied else (),
            must_learn=(END_OF_TEXT,),
            no_weight_decay=("*norm*",),
            accumulation=self.accumulation,
        )
        self.make_optimizer()

    def make_optimizer(self) -> None:
        matrices = [p for p in self.model.parameters() if p.dim() == 2]
        gains = [p for p in self.model.parameters() if p.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE)

    def batch(self, step: int) -> dict[str, Tensor]:
        """Two documents a row, each closed by END_OF_TEXT, of different lengths in each row."""
        generator = torch.Generator().manual_seed(100 + step)
        ids = torch.randint(2, VOCABULARY, (ROWS, TOKENS), generator=generator)
        for row in range(ROWS):
            ids[row, 3 + 2 * row] = END_OF_TEXT
        documents = (ids == END_OF_TEXT).cumsum(1) - (ids == END_OF_TEXT).long()
        batch = {"input_ids": ids, "documents": documents}
        return batch | {"targets": self.targets(batch)}

    def targets(self, batch: dict[str, Tensor]) -> Tensor:
        """The next token of the same document."""
        ids, documents = batch["input_ids"], batch["documents"]
        targets = torch.full_like(ids, -100)
        same = documents[:, 1:] == documents[:, :-1]
        targets[:, :-1] = torch.where(same, ids[:, 1:], -100)
        return targets

    def documents(self, step: int, rank: int) -> Tensor:
        return self.batch(step)["documents"]

    def micro_batches(self, step: int, rank: int) -> list[dict[str, Tensor]]:
        parts = {name: value.chunk(self.accumulation) for name, value in self.batch(step).items()}
        return [{name: value[i] for name, value in parts.items()} for i in range(self.accumulation)]

    def forward(self, model: ByteModel, batch: dict[str, Tensor]) -> Tensor:
        return model(batch["input_ids"], batch["documents"])

    def loss(self, model: ByteModel, batch: dict[str, Tensor]) -> Tensor:
        count = (batch["targets"] >= 0).sum()
        return sum_of_cross_entropy(self.forward(model, batch), batch["targets"]) / count

    def learning_rate(self, step: int) -> float:
        return LEARNING_RATE

    def train_step(self, step: int) -> float:
        self.optimizer.zero_grad()
        self.accumulate(step)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        self.optimizer.step()

    def accumulate(self, step: int) -> None:
        micro_batches = self.micro_batches(step, 0)
        counts = [(part["targets"] >= 0).sum() for part in micro_batches]
        for part, count in zip(micro_batches, counts, strict=True):
            (self.loss(self.model, part) * count / sum(counts)).backward()
