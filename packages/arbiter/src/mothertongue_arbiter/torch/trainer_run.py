"""A `transformers.Trainer` as a training run: its own model, batches, loss, optimizer and step.

The loss is the Trainer's `compute_loss` on all micro-batches of an optimizer step at once, told how many
labels they have, as the Trainer tells it. That is what accumulation must reproduce, so a mean of micro-batch
means, which the Trainer itself had until 2024 and a custom `compute_loss` easily brings back, is found.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared

AUDITED_STEPS = 6  # optimizer steps whose batches are kept
IGNORED = -100  # the label of a position that learns nothing, in all of transformers
LABELS_NOTE = (
    "transformers divides by all labels, also the first of each row, which nothing can learn: loss and "
    "gradients are {:.3f} times those of the mean"
)


class TrainerRun:
    """What the arbiter asks about `trainer`, whose training has just begun."""

    def __init__(self, trainer: Any, *, declared: Declared | None = None) -> None:
        self._trainer = trainer
        self.model = trainer.accelerator.unwrap_model(trainer.model)
        self.optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        self.scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
        self._first_step = trainer.state.global_step
        self._micro_batches = list(_first_batches(trainer))
        self._causal = "ForCausalLM" in type(self.model).__name__
        self.declared = declared or self._declared()

    @property
    def notes(self) -> tuple[str, ...]:
        return (LABELS_NOTE.format(self._share),) if self._counts_labels and self._causal else ()

    def micro_batches(self, step: int, rank: int) -> list[dict[str, Any]]:
        return [dict(part) for part in self._of_step(step)]

    def batch(self, step: int) -> dict[str, Any]:
        """Return the micro-batches of `step` as one batch, padded on the right to one length."""
        parts = self._of_step(step)
        return dict(parts[0]) if len(parts) == 1 else self._joined(parts)

    def loss(self, model: Any, batch: Mapping[str, Any]) -> Tensor:
        trainer = self._trainer
        count = trainer._get_num_items_in_batch([batch], trainer.args.device)
        with trainer.compute_loss_context_manager():
            loss: Tensor = trainer.compute_loss(model, dict(batch), num_items_in_batch=count)
        return loss

    def forward(self, model: Any, batch: Mapping[str, Any]) -> Any:
        return model(**{name: value for name, value in batch.items() if name != "labels"})

    def train_step(self, step: int) -> None:
        """Do what `Trainer._inner_training_loop` (transformers 4.57) does in one optimizer step."""
        trainer, parts = self._trainer, self._of_step(step)
        model = getattr(trainer, "model_wrapped", None) or trainer.model
        count = trainer._get_num_items_in_batch(parts, trainer.args.device)
        trainer.current_gradient_accumulation_steps = len(parts)
        for i, part in enumerate(parts):
            trainer.accelerator.gradient_state._set_sync_gradients(i == len(parts) - 1)
            trainer.training_step(model, dict(part), count)
        if trainer.args.max_grad_norm:
            trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        if not trainer.accelerator.optimizer_step_was_skipped:
            trainer.lr_scheduler.step()
        model.zero_grad()

    @property
    def _counts_labels(self) -> bool:
        """Whether the Trainer tells `compute_loss` how many labels an optimizer step has."""
        trainer = self._trainer
        return bool(trainer.model_accepts_loss_kwargs or trainer.compute_loss_func is not None)

    @property
    def has_own_loss(self) -> bool:
        """Whether the program computes its loss itself, so that nothing is known about its size."""
        trainer = self._trainer
        return trainer.compute_loss_func is not None or not type(trainer).compute_loss.__module__.startswith(
            "transformers."
        )

    @property
    def _share(self) -> float:
        """The share of the labels of the first step that a position can learn."""
        labels = [part["labels"] for part in self._micro_batches[0] if "labels" in part]
        learned = sum(int((one[:, 1:] != IGNORED).sum()) for one in labels)
        return learned / max(sum(int((one != IGNORED).sum()) for one in labels), 1)

    def _of_step(self, step: int) -> list[dict[str, Any]]:
        # A short data set begins again, as its next epoch does.
        return self._micro_batches[(step - self._first_step) % len(self._micro_batches)]

    def _joined(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        pad = getattr(self.model.config, "pad_token_id", None) or 0
        fill = {"labels": IGNORED, "input_ids": pad}
        joined = {}
        for name, first in parts[0].items():
            values = [part[name] for part in parts]
            if isinstance(first, Tensor) and first.dim() == 2:
                width = max(value.shape[1] for value in values)
                values = [
                    F.pad(value, (0, width - value.shape[1]), value=fill.get(name, 0)) for value in values
                ]
            joined[name] = torch.cat(values) if isinstance(first, Tensor) and first.dim() else first
        return joined

    def _declared(self) -> Declared:
        trainer, args, config = self._trainer, self._trainer.args, self.model.config
        decayed = set(trainer.get_decay_parameter_names(self.model))
        names = [name for name, _ in self.model.named_parameters()]
        vocabulary = getattr(config, "vocab_size", None)
        scaled = self._counts_labels and self._causal
        return Declared(
            vocabulary=vocabulary,
            causal=self._causal,
            labels="next" if self._causal else "other",
            supervised="some",
            normalisation="other" if scaled or args.label_smoothing_factor else "tokens",
            initial_loss=math.log(vocabulary) * self._share if scaled and vocabulary else None,
            label_smoothing=args.label_smoothing_factor,
            accumulation=args.gradient_accumulation_steps,
            frozen=tuple(name for name, one in self.model.named_parameters() if not one.requires_grad),
            no_weight_decay=tuple(name for name in names if name not in decayed),
            warmup_steps=args.get_warmup_steps(trainer.state.max_steps),
            epoch_steps=epoch_steps(trainer),
        )

    def declared_optimizer(self) -> Optimizer | None:
        """Return what the arguments say that a step does; None for another optimizer than their AdamW."""
        args, model = self._trainer.args, self.model
        rates = getattr(self.scheduler, "lr_lambdas", None)
        if rates is None or not str(args.optim).endswith(("ADAMW_TORCH", "ADAMW_TORCH_FUSED")):
            return None

        def rate(step: int) -> float:
            return float(args.learning_rate * rates[0](step))

        decayed = set(self._trainer.get_decay_parameter_names(model))
        groups = [
            Group(
                parameters=tuple(n for n, _ in model.named_parameters() if (n in decayed) == decays),
                algorithm="adamw",
                learning_rate=rate,
                weight_decay=args.weight_decay if decays else 0.0,
                betas=(args.adam_beta1, args.adam_beta2),
                eps=args.adam_epsilon,
            )
            for decays in (True, False)
        ]
        return Optimizer(groups=tuple(groups), clip_norm=args.max_grad_norm or None)


def epoch_steps(trainer: Any) -> int | None:
    """Return the optimizer steps of one pass over the data, None when its length is not known."""
    try:
        batches: int = len(trainer.get_train_dataloader())
    except TypeError:
        return None
    accumulation: int = trainer.args.gradient_accumulation_steps
    return math.ceil(batches / accumulation)


def _first_batches(trainer: Any) -> Iterator[list[dict[str, Any]]]:
    """Yield the micro-batches of the first optimizer steps, on the device; no random number is spent."""
    with _same_random_numbers():
        loader = trainer.get_train_dataloader()
        batches = iter(loader)
        first = None
        for _ in range(AUDITED_STEPS):
            taken = islice(batches, trainer.args.gradient_accumulation_steps)
            parts = [trainer._prepare_inputs(dict(batch)) for batch in taken]
            if first is None and not parts:
                raise ArbiterError("the train dataloader gives no batch; there is nothing to train on")
            first = first or parts
            if len(parts) < len(first):  # the short rest of an epoch
                break
            yield parts
        if hasattr(loader, "end"):
            loader.end()  # or accelerate takes the abandoned loader for the running one


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put the global random numbers back afterwards, so that an audited training sees the same data."""
    python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng():
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002
