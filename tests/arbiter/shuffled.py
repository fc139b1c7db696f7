"""A second sound program: two ranks that share a shuffled corpus, epochs, checkpoints and an evaluation.

Its data position is a state, as in a data loader; each part is a method, so that a fault replaces one.
"""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F

from mothertongue_arbiter import Declared

VOCABULARY, WIDTH, TOKENS, END = 40, 16, 12, 1
ROWS, RANKS = 3, 2  # rows of one micro-batch, and how many ranks
DOCUMENTS, HELD_OUT = 24, 6
EPOCH_STEPS = DOCUMENTS // (ROWS * RANKS)


class Words(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1)
        nn.init.normal_(self.head.weight, std=0.02)

    def forward(self, ids):
        x = self.embedding(ids)
        before = x.cumsum(1) / torch.arange(1, ids.shape[1] + 1, dtype=x.dtype)[:, None]
        return self.head(self.dropout(self.norm(x + self.mix(before).tanh())))


class ShuffledRun:
    def __init__(self, dropout: float = 0.1) -> None:
        torch.manual_seed(3)
        self.dropout = dropout
        generator = torch.Generator().manual_seed(5)
        corpus = torch.randint(2, VOCABULARY, (DOCUMENTS + HELD_OUT, TOKENS), generator=generator)
        corpus[:, -1] = END
        self.corpus, self.held_out = corpus[:DOCUMENTS], corpus[DOCUMENTS:]
        first = Words(dropout)
        self.replicas = [first, *(copy.deepcopy(first) for _ in range(RANKS - 1))]
        self.model = first
        self.optimizer = [torch.optim.AdamW(model.parameters(), lr=1e-2) for model in self.replicas]
        self.schedulers = [torch.optim.lr_scheduler.LambdaLR(o, self.rate) for o in self.optimizer]
        self.epoch, self.position = 0, 0
        self.declared = Declared(
            vocabulary=VOCABULARY,
            ranks=RANKS,
            epoch_steps=EPOCH_STEPS,
            must_learn=(END,),
            order_matters=False,
        )

    def rate(self, step):
        return 0.5 * (1 + math.cos(math.pi * min(step, 20) / 20))

    def order(self, epoch):
        return torch.randperm(DOCUMENTS, generator=torch.Generator().manual_seed(epoch))

    def rows(self, epoch, position, rank):
        """The rows of one rank at a position of an epoch."""
        order = self.order(epoch)
        start = position * ROWS * RANKS + rank * ROWS
        return self.corpus[order[start : start + ROWS]]

    def micro_batches(self, step, rank):
        return [self.rows(step // EPOCH_STEPS, step % EPOCH_STEPS, rank)]

    def batch(self, step):
        return torch.cat([part for rank in range(RANKS) for part in self.micro_batches(step, rank)])

    def documents(self, step, rank):
        return [row.tolist() for part in self.micro_batches(step, rank) for row in part]

    def eval_batches(self, index):
        if index >= 2:
            raise IndexError(index)
        return self.held_out[3 * index : 3 * index + 3]

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            losses = [float(self.loss(self.model, self.eval_batches(index))) for index in range(2)]
        self.model.train()
        return sum(losses) / len(losses)

    def forward(self, model, batch):
        return model(batch)

    def loss(self, model, batch):
        logits = self.forward(model, batch)[:, :-1]
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def train_step(self, step):
        for rank, model in enumerate(self.replicas):
            model.zero_grad()
            self.loss(model, self.rows(self.epoch, self.position, rank)).backward()
        self.reduce()
        for optimizer, scheduler in zip(self.optimizer, self.schedulers, strict=True):
            optimizer.step()
            scheduler.step()
        self.position += 1
        if self.position == EPOCH_STEPS:
            self.epoch, self.position = self.epoch + 1, 0

    def reduce(self):
        for together in zip(*(model.parameters() for model in self.replicas), strict=True):
            mean = sum(one.grad for one in together) / RANKS
            for one in together:
                one.grad = mean.clone()

    def checkpoint(self):
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer[0].state_dict(),
            "scheduler": self.schedulers[0].state_dict(),
            "random": torch.get_rng_state(),
            "epoch": self.epoch,
            "position": self.position,
        }

    def resume(self, state):
        for rank in range(RANKS):
            self.replicas[rank].load_state_dict(state["model"])
            self.optimizer[rank].load_state_dict(copy.deepcopy(state["optimizer"]))
            self.schedulers[rank].load_state_dict(state["scheduler"])
        torch.set_rng_state(state["random"])
        self.epoch, self.position = state["epoch"], state["position"]

    def rebuild(self, dtype=None):
        fresh = type(self)(self.dropout)
        for model in fresh.replicas if dtype else []:
            model.to(dtype)
        return fresh
