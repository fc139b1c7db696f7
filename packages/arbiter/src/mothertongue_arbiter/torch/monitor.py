"""Watch a training while it runs, for less than 1 % of its time and without ever waiting for the device.

    with Monitor(model, optimizer) as monitor:
        for step in range(steps):
            ...                                   # backward() and optimizer.step()
            for finding in monitor.observe(step, batch, loss):
                print(finding)
            optimizer.zero_grad()
    monitor.check                                 # a `Check`: PASS, FAIL or INCONCLUSIVE, and its evidence

`observe` comes after `optimizer.step()` and before the gradients are zeroed. At every step it only hashes the
rows of the batch on their device. Every n steps it measures one step, tensor by tensor; numbers of a CUDA
device are copied in the background and judged when they have arrived. n grows until the measured cost stays
inside the budget.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.certificate import Check, Finding
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.monitoring import Observation, TensorWatch, conclusion
from mothertongue_arbiter.pacing import Pace
from mothertongue_arbiter.run import Declared
from mothertongue_arbiter.torch.on_device.gauge import (
    AFTER,
    ALIVE,
    BEFORE,
    COUNTER,
    GRADIENT,
    STILL,
    UPDATE,
    Gauge,
)
from mothertongue_arbiter.torch.on_device.parcel import DeviceClock, Parcel
from mothertongue_arbiter.torch.on_device.row_hashes import row_hashes
from mothertongue_arbiter.watches import BatchWatch, LossWatch, ScaleWatch

BUDGET = 0.005  # of the time of a step; half of what is promised
PATIENCE = 8  # observations in a row before a tensor is called frozen or dead
LONGEST_QUEUE = 64  # steps whose loss and rows wait to be judged


@dataclass(frozen=True, kw_only=True)
class Noted:
    """What is known of one step at once; tensors stay on their device."""

    step: int
    loss: Tensor | float | None
    rows: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Sent:
    """Steps whose numbers are on their way to the host."""

    parcel: Parcel
    notes: Sequence[Noted]
    rates: Sequence[float]  # of each tensor, in the last of the steps
    clock: DeviceClock | None = None  # that timed the measurement


class Monitor:
    """Observes one training.

    A step is measured every `every` steps, less often where `budget`, a share of the time of a step, asks
    for it; with `budget=None` exactly so often. `scaler` is a GradScaler, `optimizer` one or a list. A
    finding is told once for each tensor and kind.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        *,
        declared: Declared | None = None,
        scaler: Any = None,
        every: int = 10,
        patience: int = PATIENCE,
        budget: float | None = BUDGET,
    ) -> None:
        declared = declared or Declared()
        self.findings: list[Finding] = []
        self.steps = self.measured = 0
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.is_floating_point() and (parameter.requires_grad or declared.is_frozen(name))
        }
        if not self._parameters:
            raise ArbiterError("monitor: the model has no trainable parameter, so there is nothing to watch")
        self._optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self._scaler = scaler
        self._pace = Pace(every=every, budget=budget)
        self._gauge = Gauge(self._parameters)
        self._tensors = TensorWatch(
            list(self._parameters),
            numbers=[parameter.numel() for parameter in self._parameters.values()],
            epsilons=[torch.finfo(parameter.dtype).eps for parameter in self._parameters.values()],
            declared=declared,
            patience=patience,
        )
        self._losses, self._batches = LossWatch(), BatchWatch(declared.epoch_steps)
        self._scales = ScaleWatch()
        self._notes: list[Noted] = []
        self._sent: Sent | None = None
        self._armed_after: int | None = None
        self._told: set[tuple[str, str]] = set()
        self._called = False  # the optimizer, since the last look
        self._hooks = [
            one.register_step_post_hook(self._note_call)
            for one in self._optimizers
            if scaler is not None and hasattr(one, "register_step_post_hook")
        ]

    def __enter__(self) -> Monitor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def observe(
        self, step: int, batch: Any = None, loss: Tensor | float | None = None
    ) -> tuple[Finding, ...]:
        """Look at optimizer step `step`, just done on `batch` (or a list of micro-batches) with `loss`.

        Returns what is new. On a CUDA device that is about earlier steps, since nothing here waits.

        Raises:
            ArbiterError: the loss is no single number.
        """
        if isinstance(loss, Tensor) and loss.numel() != 1:
            raise ArbiterError(f"monitor: loss of shape {tuple(loss.shape)} found, one number expected")
        pace = self._pace
        pace.begin()
        self.steps += 1
        found = self._arrived()
        if self._hooks:
            found += self._scales.step(step, skipped=not self._called)
            self._called = False
        rows = row_hashes(batch) if batch is not None and pace.may_hash else None
        self._notes.append(
            Noted(step=step, loss=loss.detach() if isinstance(loss, Tensor) else loss, rows=rows)
        )
        if rows is not None:
            pace.spent("rows")
        if self._armed_after == step - 1 and self._sent is None:
            with DeviceClock(self._gauge.device) as clock:
                table = self._gauge.measure(self._optimizers)
            self._send(table, clock)
            found += self._arrived()
            pace.spent("measure")
        elif len(self._notes) >= LONGEST_QUEUE and self._sent is None:
            self._send(None)
        self._armed_after = None
        if pace.must_arm:
            self._gauge.arm()
            self._armed_after = step
            pace.spent("arm")
        pace.end()
        return self._fresh(found)

    def close(self) -> tuple[Finding, ...]:
        """Judge what is still waiting, and return what is new. This waits for the device."""
        found = self._open()
        if self._notes:
            self._send(None)
            found += self._open()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        return self._fresh(found)

    @property
    def check(self) -> Check:
        """What the monitor has to say about the run so far, as one check of a certificate."""
        return conclusion(self.findings, steps=self.steps, measured=self.measured)

    def as_dict(self) -> dict[str, Any]:
        """Return the check, the cost and the last numbers of each tensor as plain JSON values."""
        return {
            **asdict(self.check),
            "steps": self.steps,
            "measured": self.measured,
            "every_steps": self._pace.every,
            "cost_share": round(self._pace.cost_share, 5),
            "skipped_steps": self._scales.skipped_steps,
            "lowest_loss_scale": self._scales.lowest,
            "tensors": {
                name: {key: value if math.isfinite(value) else str(value) for key, value in numbers.items()}
                for name, numbers in self._tensors.ratios.items()
            },
        }

    def write(self, path: Path) -> None:
        """Write `as_dict` as JSON to `path`, which never holds half of it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.partial")
        text = json.dumps(self.as_dict(), ensure_ascii=False, indent=1) + "\n"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)

    def _send(self, table: Tensor | None, clock: DeviceClock | None = None) -> None:
        """Send what was noted, and `table`, to the host."""
        scale = getattr(self._scaler, "_scale", None)  # get_scale() would wait for the device
        losses = [note.loss if isinstance(note.loss, Tensor) else None for note in self._notes]
        parcel = Parcel([table, scale, *losses, *(note.rows for note in self._notes)])
        rates = self._rates() if table is not None else ()
        self._sent = Sent(parcel=parcel, notes=self._notes, rates=rates, clock=clock)
        self._notes = []

    def _arrived(self) -> list[Finding]:
        return self._open() if self._sent is not None and self._sent.parcel.has_arrived else []

    def _open(self) -> list[Finding]:
        """Judge what was sent."""
        if self._sent is None:
            return []
        sent, self._sent = self._sent, None
        table, scale, *rest = sent.parcel.open()
        if sent.clock is not None:
            self._pace.device_seconds("measure", sent.clock.seconds)
        losses, rows = rest[: len(sent.notes)], rest[len(sent.notes) :]
        found = []
        for note, loss, hashes in zip(sent.notes, losses, rows, strict=True):
            number = note.loss if loss is None else float(loss)
            found += [] if number is None else self._losses.look(note.step, float(number))
            found += [] if hashes is None else self._batches.look(note.step, hashes.numpy())
        step = sent.notes[-1].step
        if scale is not None:
            found += self._scales.look(step, float(scale))
        if table is not None:
            self.measured += 1
            found += self._tensors.look(_observation(step, table, sent.rates))
        return found

    def _rates(self) -> list[float]:
        """Return the learning rate of each tensor; NaN for one that no optimizer has."""
        rates: dict[int, float] = {}
        for optimizer in self._optimizers:
            for group in getattr(optimizer, "param_groups", []):
                rate = group.get("lr", 1.0)
                on_host = not isinstance(rate, Tensor) or rate.device.type == "cpu"
                number = float(rate) if on_host else 1.0  # to read it would wait for the device
                rates.update((id(parameter), number) for parameter in group["params"])
        absent = math.nan if rates else 1.0
        return [rates.get(id(parameter), absent) for parameter in self._parameters.values()]

    def _note_call(self, *_: Any) -> None:
        self._called = True

    def _fresh(self, found: Sequence[Finding]) -> tuple[Finding, ...]:
        fresh = []
        for finding in found:
            if (finding.verdict, finding.subject) not in self._told:
                self._told.add((finding.verdict, finding.subject))
                fresh.append(finding)
        self.findings += fresh
        return tuple(fresh)


def _observation(step: int, table: Tensor, rates: Sequence[float]) -> Observation:
    numbers = table.double().numpy()
    return Observation(
        step=step,
        gradient_norms=numbers[GRADIENT],
        norms_before=numbers[BEFORE],
        norms=numbers[AFTER],
        update_norms=numbers[UPDATE],
        alive=numbers[ALIVE],
        still=numbers[STILL],
        learning_rates=torch.tensor(rates, dtype=torch.float64).numpy(),
        counters=numbers[COUNTER],
    )
