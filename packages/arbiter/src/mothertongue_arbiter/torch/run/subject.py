"""The run under audit, with everything that several checks want to know about it, computed once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.run import Declared, TrainingRun, declarations
from mothertongue_arbiter.torch.run.backward import (
    Backward,
    backward,
    logits_of,
    random_state,
    same_start,
    scalar,
)
from mothertongue_arbiter.torch.run.batches import in_float64, rows_of, token_ids, with_ids
from mothertongue_arbiter.torch.run.expectation import Expectation
from mothertongue_arbiter.torch.run.listing import listed_documents, numbered
from mothertongue_arbiter.torch.run.precision import Float64Mode
from mothertongue_arbiter.torch.run.witness import TorchWitness
from mothertongue_arbiter.torch.run.xray import Xray, captured_logits, xray

STIR = 0.1  # in units of the scale of each tensor
NUDGE = 1e-6  # too little for most choices, as of an expert, to become others
SAME = 1e-9  # of logits, relative to the largest; sums of another order differ by 1e-13
TABLE_ROUNDING = (
    2.0**-22
)  # of an angle of one position, when the table was made in float32 and not for the audit


class Unavailable(Exception):
    """A check needs a member, or a fact, that this run does not have; the message is the reason."""


class Subject:
    """One run at one step. Used first in its own precision, then in float64.

    `batches` are those of this step and of the next one, where they were read before.
    """

    def __init__(
        self, run: TrainingRun, *, step: int, options: Options, batches: tuple[Any, Any] | None = None
    ) -> None:
        self.run = run
        self.step = step
        self.options = options
        self.declared: Declared = declarations(run)
        self.rows_read: dict[int, Any] = {}  # of each step that was looked at
        self.step_seconds: list[float] = []  # of the run's own training steps, undisturbed
        self.batch, self.next_batch = batches or (
            self._rows(run.batch(step)),
            self._rows(run.batch(step + 1)),
        )

    @cached_property
    def own(self) -> Backward:
        """The gradient in the run's own precision, after another batch, so that stale gradients show."""
        backward(self.run, self.next_batch, seed=self.options.seed)
        return backward(self.run, self.batch, seed=self.options.seed)

    @cached_property
    def is_random(self) -> bool:
        """Whether the loss depends on random numbers, as with dropout."""
        return self._draws()

    @cached_property
    def is_still(self) -> bool:
        """Whether a step can be repeated outside of the program, if it runs inside `stillness`."""
        with self.stillness():
            return not self._draws()

    def stillness(self) -> AbstractContextManager[object]:
        """Return a context in which dropout drops nothing; where nothing is random it changes nothing."""
        return Expectation() if self.is_random else nullcontext()

    def _draws(self) -> bool:
        """Return whether random numbers are drawn: a path that is rarely left out gives many equal losses."""
        with torch.no_grad(), same_start(self.run.model, self.options.seed):
            before = random_state()
            self.run.loss(self.run.model, self.batch)
        return random_state() != before

    @property
    def ids(self) -> Tensor:
        ids = token_ids(self.batch)
        if ids is None:
            raise Unavailable("the batch holds no two-dimensional integer tensor of token ids")
        return ids

    @cached_property
    def documents(self) -> Tensor | None:
        """The number of the document of each token, (B, T); None when the run does not say."""
        if not hasattr(self.run, "documents"):
            return None
        given = self.run.documents(self.step, 0)
        listed = listed_documents(given, self.ids)
        if listed is not None:  # whether the batch holds them is a check of its own
            return numbered(listed, self.ids)
        documents = torch.as_tensor(given).to(self.ids.device)[: len(self.ids)]
        if documents.shape != self.ids.shape:
            found, expected = tuple(documents.shape), tuple(self.ids.shape)
            raise Unavailable(f"`documents` has shape {found}, the token ids {expected}")
        return documents

    @cached_property
    def vocabulary(self) -> int | None:
        """The entries of a row of logits; None when neither the author nor `forward` says."""
        if self.declared.vocabulary is None and hasattr(self.run, "forward"):
            return self.logits(self.batch).shape[-1]
        return self.declared.vocabulary

    def need(self, member: str) -> Any:
        """Return the optional member of the run, or say that the check needs it."""
        if getattr(self.run, member, None) is None:
            raise Unavailable(f"the run has no `{member}`")
        return getattr(self.run, member)

    def logits(self, batch: Any) -> Tensor:
        """Return the logits (B, T, V) of `batch`, with the random numbers fixed."""
        forward = self.need("forward")
        with torch.no_grad(), same_start(self.run.model, self.options.seed):
            return logits_of(forward(self.run.model, batch))

    def _rows(self, batch: Any) -> Any:
        rows = self.options.rows
        return batch if rows is None else rows_of(batch, slice(0, rows))


class ExactSubject(Subject):
    """The same run while its model is in float64.

    Raises:
        ArbiterError: some gradient is not float64, so that nothing can be certified.
    """

    def __init__(self, subject: Subject, mode: Float64Mode) -> None:
        batches = in_float64(subject.batch), in_float64(subject.next_batch)  # in it others would be drawn
        super().__init__(subject.run, step=subject.step, options=subject.options, batches=batches)
        self.mode = mode
        self._standing: dict[tuple[bool, ...], Tensor] = {}
        self._is_stirred = False
        self._captured: list[Tensor] = []
        self.exact = self.own
        if any(one is not None and one.dtype != torch.float64 for one in self.exact.gradients.values()):
            raise ArbiterError("float64: a gradient came back in lower precision")
        self.witness = TorchWitness(self.run, self.batch, self.exact, uses=mode.uses, seed=self.options.seed)
        self.judge = Judge(
            self.witness, self.declared, step=self.step, random_directions=self.options.random_directions
        )

    @contextmanager
    def stirred(self) -> Iterator[None]:
        """Move all weights a little, so that a projection that starts at zero hides no connection."""
        with self.witness.moved_by(self._stir, STIR), torch.no_grad():
            self._is_stirred = True
            try:
                yield
            finally:
                self._is_stirred = False

    @cached_property
    def _stir(self) -> Direction:
        """One direction for all probes, so that its signs are made once."""
        scales = {name: self.witness.scale(name) for name in self.witness.names()}
        return Direction(seed=self.options.seed, scales=scales)

    @cached_property
    def has_moving_state(self) -> bool:
        """Whether a forward moves buffers by its weights, with no gradient, and its loss depends on them."""
        model, seed = self.run.model, self.options.seed

        def after() -> tuple[float, list[Tensor]]:
            loss = scalar(self.run.loss(model, self.batch))
            return float(loss), [buffer.clone() for buffer in model.buffers()]

        with torch.no_grad(), same_start(model, seed):
            loss, state = after()
            with same_start(model, seed):
                again, _ = after()
        with torch.no_grad(), self.witness.moved_by(self._stir, NUDGE), same_start(model, seed):
            _, other = after()
        return loss != again and any(map(_differ, state, other))

    @property
    def standing(self) -> Tensor:
        """The logits of the batch as it is, computed once for all probes: each stirs the weights alike."""
        modes = (self._is_stirred, *(module.training for module in self.run.model.modules()))
        if modes not in self._standing:
            self._standing[modes] = self.logits(self.batch)
        return self._standing[modes]

    def change(self, before: Tensor, ids: Tensor) -> Tensor:
        """Return, per position, the largest relative change of the logits when the token ids become `ids`."""
        after = self.logits(with_ids(self.batch, ids))
        if after.shape != before.shape:
            raise Unavailable("`forward` returns another shape when tokens change")
        return (after - before).abs().amax(-1) / before.abs().max().clamp(min=1e-30)

    @property
    def same_at_other_positions(self) -> float:
        """How far logits may be apart, relatively, that are made from other positions of a rotary table.

        A table that was made in float32, before the audit, is as wrong as float32 is at the last position.
        """
        return TABLE_ROUNDING * max(16, self.ids.shape[1]) if self.mode.has_rounded_tables else SAME

    @cached_property
    def xray(self) -> Xray:
        """What the gradient at the logits says about labels and weights."""
        return xray(self.logits_of_loss)

    @cached_property
    def own(self) -> Backward:
        """The exact gradient, after another batch; the logits that it came from are kept."""
        backward(self.run, self.next_batch, seed=self.options.seed)
        with self._capture() as self._captured:
            return backward(self.run, self.batch, seed=self.options.seed)

    def _capture(self) -> AbstractContextManager[list[Tensor]]:
        try:
            return captured_logits(self.vocabulary, least=int(self.ids.max()) + 1)
        except Exception:  # the gradient can be judged without; who needs the logits is told why
            return nullcontext([])

    @property
    def logits_of_loss(self) -> Tensor:
        """The logits that the loss was made of, with their gradient."""
        if not self._captured:
            _ = self.vocabulary, self.ids  # either may say why
            raise Unavailable("no module returned logits, (rows, tokens, vocabulary), on the way to the loss")
        return self._captured[-1]


def _differ(one: Tensor, other: Tensor) -> bool:
    return one.shape != other.shape or not torch.equal(one, other)
