"""The subject of the fault zoo: a whole training run, all sound, as a user would hand it over.

Each part of a step is a method, so that a fault is one replaced attribute.
"""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from faults.loss import Batch, count, sum_of_cross_entropy
from faults.model import VOCABULARY, ByteModel
from faults.reference import plain_forward
from faults.text import (
    END_OF_TEXT,
    EPOCH_STEPS,
    PADDING,
    ROWS,
    held_out_rows,
    next_tokens,
    padded,
    train_rows,
)
from mothertongue_arbiter import Declared
from mothertongue_arbiter.declared_optimizer import Group, Optimizer

LEARNING_RATE, WARMUP_STEPS, BETAS, WEIGHT_DECAY, CLIP_NORM = 3e-3, 4, (0.9, 0.95), 0.1, 0.5
EMA_DECAY = 0.9
AUXILIARY_WEIGHT = 0.01


def warmed_up(step: int) -> float:
    return LEARNING_RATE * min(1.0, (step + 1) / WARMUP_STEPS)


@dataclass
class ZooRun:
    """A run with every member that the arbiter can use; `origin` makes another one like it."""

    highest_rate, betas, weight_decay = LEARNING_RATE, BETAS, WEIGHT_DECAY
    tied: bool = True
    dropout: float = 0.0
    accumulation: int = 1
    ranks: int = 1
    mixture: bool = False
    learned_positions: bool = False
    padding: str = ""  # "left" or "right": one document a row
    chat: bool = False  # only what follows the first two tokens of a document is learned
    as_lists: bool = False  # the author names the documents themselves, not their numbers
    seed: int = 7
    declared: Declared = None
    origin: Callable[[], "ZooRun"] = None
    model: ByteModel = field(init=False)

    def __post_init__(self) -> None:
        generator_state = torch.get_rng_state()
        torch.manual_seed(self.seed)
        self.model = ByteModel(
            tied=self.tied,
            dropout=self.dropout,
            mixture=self.mixture,
            learned_positions=self.learned_positions,
        )
        torch.set_rng_state(generator_state)
        self.models = [self.model, *(deepcopy(self.model) for _ in range(self.ranks - 1))]
        self.steps_taken = 0
        self.declared = self.declared or self.belief()
        self.prepare()

    replicas = property(lambda self: self.models)

    def prepare(self) -> None:
        """Make the optimizer and the average for the parameters that the model has now."""
        self.make_optimizer()
        self.ema = {name: value.detach().clone() for name, value in self.model.named_parameters()}

    def belief(self) -> Declared:
        return Declared(
            vocabulary=VOCABULARY,
            isolated_documents=True,
            positions="absolute" if self.learned_positions else "relative",
            pad_token=PADDING if self.padding else None,
            tied=(("embedding.weight", "head.weight"),) if self.tied else (),
            supervised="some" if self.chat else "all",
            must_learn=(END_OF_TEXT,),
            no_weight_decay=("*norm",),
            accumulation=self.accumulation,
            ranks=self.ranks,
            epoch_steps=EPOCH_STEPS,
            ema_decay=EMA_DECAY,
            # What the router adds to the loss is no cross-entropy.
            normalisation="other" if self.mixture else "tokens",
            conditional=("*.experts.*",) if self.mixture else (),
            dtypes={"*": "float32"},
            optimizer=Optimizer(
                groups=(
                    Group(parameters=("*norm",), learning_rate=warmed_up, betas=BETAS),
                    Group(parameters=("*",), learning_rate=warmed_up, betas=BETAS, weight_decay=WEIGHT_DECAY),
                ),
                clip_norm=CLIP_NORM,
            ),
        )

    def make_optimizer(self) -> None:
        """One AdamW a rank over what is trainable; a list of them where there are several ranks."""
        made = []
        for model in self.models:
            trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
            matrices = [parameter for parameter in trainable if parameter.dim() == 2]
            gains = [parameter for parameter in trainable if parameter.dim() == 1]
            groups = [
                {"params": matrices, "weight_decay": self.weight_decay},
                {"params": gains, "weight_decay": 0.0},
            ]
            groups = [group for group in groups if group["params"]]
            made.append(torch.optim.AdamW(groups, self.highest_rate, self.betas))
        self.optimizer = made if self.ranks > 1 else made[0]

    def optimizers(self) -> list[torch.optim.Optimizer]:
        return self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]

    # The data.

    def order(self, epoch: int) -> Tensor:
        """Return the order of the rows in `epoch`."""
        return torch.randperm(ROWS * EPOCH_STEPS, generator=torch.Generator().manual_seed(self.seed + epoch))

    def data_step(self, step: int) -> int:
        return step

    def batch(self, step: int) -> Batch:
        epoch, index = divmod(self.data_step(step), EPOCH_STEPS)
        chosen = self.order(epoch)[index * ROWS : (index + 1) * ROWS]
        return self.collate(*(part[chosen] for part in train_rows()))

    def eval_batches(self, index: int) -> Batch:
        return self.collate(*(part[ROWS * (index % 2) :][:ROWS] for part in held_out_rows()))

    def evaluate(self) -> float:
        """Return the mean loss of the held-out part, without dropout, and train on."""
        modes = {module: module.training for module in self.model.modules()}
        self.model.eval()
        with torch.no_grad():
            losses = [float(self.loss(self.model, self.eval_batches(i))) for i in range(2)]
        for module, training in modes.items():
            module.training = training
        return sum(losses) / len(losses)

    def collate(self, ids: Tensor, documents: Tensor) -> Batch:
        if self.padding:
            ids, documents = padded(ids, documents, self.padding)
        batch = {"input_ids": ids, "documents": documents}
        return batch | {"targets": self.targets(batch)}

    def targets(self, batch: Batch) -> Tensor:
        """What the author believes is learned: the next token of the same document."""
        ids, documents = batch["input_ids"], batch["documents"]
        targets = next_tokens(ids, documents)
        if self.chat:
            opening = documents.roll(2, 1) != documents
            opening[:, :2] = True
            targets = targets.masked_fill(opening, -100)
        return targets

    def documents(self, step: int, rank: int) -> Tensor | list[list[int]]:
        """What the author believes is in the batch, whatever `batch` was replaced by."""
        own = self.part_of_rank(ZooRun.batch(self, step), rank)
        if not self.as_lists:
            return own["documents"]
        pairs = zip(own["input_ids"], own["documents"], strict=True)
        listed = [row[number == part].tolist() for row, number in pairs for part in number.unique()]
        return [document for document in listed if document[-1] != PADDING]

    def part_of_rank(self, batch: Batch, rank: int) -> Batch:
        return {name: value.chunk(self.ranks)[rank] for name, value in batch.items()}

    def micro_batches(self, step: int, rank: int) -> list[Batch]:
        own = self.part_of_rank(self.batch(step), rank)
        parts = {name: value.chunk(self.accumulation) for name, value in own.items()}
        return [{name: value[i] for name, value in parts.items()} for i in range(self.accumulation)]

    # The forward pass and its loss.

    def forward(self, model: ByteModel, batch: Batch) -> Tensor:
        return model(batch["input_ids"], batch["documents"])

    def reference(self, model: ByteModel, batch: Batch) -> Tensor:
        return plain_forward(model, batch["input_ids"], batch["documents"])

    def loss(self, model: ByteModel, batch: Batch) -> Tensor:
        return self.cross_entropy(model, batch) + self.auxiliary(model)

    def cross_entropy(self, model: ByteModel, batch: Batch) -> Tensor:
        return sum_of_cross_entropy(self.forward(model, batch), batch["targets"]) / count(batch)

    def auxiliary(self, model: ByteModel) -> Tensor | float:
        if not self.mixture:
            return 0.0
        return AUXILIARY_WEIGHT * sum(block.mixture.auxiliary for block in model.blocks)

    # The step.

    def learning_rate(self, step: int) -> float:
        return warmed_up(step)

    def train_step(self, step: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        for rank in range(self.ranks):
            self.accumulate(step, rank)
        self.all_reduce()
        for rank, optimizer in enumerate(self.optimizers()):
            self.clip(self.models[rank])
            for group in optimizer.param_groups:
                group["lr"] = self.learning_rate(step)
            optimizer.step()
        self.average_weights()
        self.steps_taken += 1

    def accumulate(self, step: int, rank: int = 0) -> None:
        """Every token of the whole batch weighs the same, on whichever rank and in whichever part."""
        parts = self.micro_batches(step, rank)
        total = sum(count(part) for other in range(self.ranks) for part in self.micro_batches(step, other))
        for part in parts:
            loss = self.loss(self.models[rank], part)
            (loss * count(part) * self.ranks / total).backward()

    def all_reduce(self) -> None:
        """Every rank gets the mean of the gradients of all."""
        for name, copies in self.copies().items():
            if self.ranks > 1:
                self.reduce(name, copies)

    def copies(self) -> dict[str, list[nn.Parameter]]:
        """Return, for each parameter, its copy on each rank."""
        named = [dict(model.named_parameters()) for model in self.models]
        return {name: [one[name] for one in named] for name in named[0]}

    def reduce(self, name: str, copies: list[nn.Parameter]) -> None:
        if all(copy.grad is None for copy in copies):  # an expert that no token of any rank visited
            return
        gradients = [torch.zeros_like(copy) if copy.grad is None else copy.grad for copy in copies]
        for copy in copies:
            copy.grad = torch.stack(gradients).mean(0)

    def clip(self, model: ByteModel) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)

    def average_weights(self) -> None:
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                self.ema[name].lerp_(parameter.to(self.ema[name].dtype), 1 - EMA_DECAY)

    # Checkpoint, resume, rebuild.

    def checkpoint(self) -> dict[str, Any]:
        return deepcopy(
            {
                "models": [model.state_dict() for model in self.models],
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers()],
                "ema": self.ema,
                "steps_taken": self.steps_taken,
                "random": torch.get_rng_state(),
            }
        )

    def resume(self, state: dict[str, Any]) -> None:
        state = deepcopy(state)
        for model, saved in zip(self.models, state["models"], strict=True):
            model.load_state_dict(saved)
        for optimizer, saved in zip(self.optimizers(), state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        for name, value in state["ema"].items():
            self.ema[name].copy_(value)
        self.steps_taken = state["steps_taken"]
        torch.set_rng_state(state["random"])

    def rebuild(self, dtype: torch.dtype | None = None) -> "ZooRun":
        run = self.origin() if self.origin else ZooRun(**self.settings())
        if dtype is not None:
            for model in run.models:
                model.to(dtype)
            run.ema = {name: value.to(dtype) for name, value in run.ema.items()}
        return run

    def settings(self) -> dict[str, Any]:
        switches = ("tied", "mixture", "learned_positions", "padding", "chat", "as_lists")
        names = (*switches, "dropout", "accumulation", "ranks", "seed", "declared")
        return {name: getattr(self, name) for name in names}
