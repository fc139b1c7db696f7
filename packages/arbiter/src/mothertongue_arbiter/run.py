"""What a training program hands over to be audited: a `TrainingRun`.

`model`, `loss` and `batch` are required. Each further member unlocks checks, and what is missing is listed
under `not_run` with its reason:

    forward(model, batch)        logits (B, T, V): causality, independence of rows and documents
    targets(batch)               (B, T) label of each position, negative where it has none: exact labels
    documents(step, rank)        (B, T) number of the document of each token of `batch(step)`: isolation
    micro_batches(step, rank)    the batches of one optimizer step, together `batch(step)`: accumulation
    optimizer                    an object, or a list of them, with `param_groups` and `step()`: coverage
    train_step(step)             the whole step on `model` and `batch(step)`: what moves, which gradient
    checkpoint(), resume(state)  everything that a step changes, and its restoration after the audit
    declared                     what the author believes, a `Declared`
    options                      how much is asked, an `audit.Options`; the command and `audit` ask so much
    notes                        sentences that the certificate repeats, as of rows that are not the real ones

`rebuild(dtype)`, a fresh run, and `eval_batches(i)` belong to the protocol, and no check reads them yet.

A batch is a tensor, a tuple or a dict. Its token ids are the integer tensor named `input_ids` or `tokens`,
else the first integer tensor with two dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable


@runtime_checkable
class TrainingRun(Protocol):
    """A model, its loss and its data: the least that can be audited."""

    @property
    def model(self) -> Any:
        """The module that is trained; for torch, any `nn.Module`."""

    def loss(self, model: Any, batch: Any) -> Any:
        """Return the scalar loss of one forward, exactly as the training computes it."""

    def batch(self, step: int) -> Any:
        """Return the whole batch of optimizer step `step`, the same one each time."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """What the author believes.

    A name is one of `model.named_parameters()`, or a pattern such as `*.norm.weight`.
    """

    vocabulary: int | None = None  # default: the last dimension of the logits
    causal: bool = True
    isolated_documents: bool = False  # no token sees another document of its row
    independent_rows: bool = True  # no row of a batch sees another
    tied: tuple[tuple[str, str], ...] = ()  # attribute paths of weights that must be one tensor

    labels: Literal["next", "other"] = "next"  # "next": position t learns token t + 1 of its row
    supervised: Literal["all", "some"] = "all"  # "some": as chat, where only answers are learned
    must_learn: tuple[int, ...] = ()  # token ids that every batch which has them must teach: end-of-text
    normalisation: Literal["tokens", "sum", "other"] = "tokens"  # "tokens": mean over supervised tokens
    initial_loss: float | None = None  # nats per token; default ln(vocabulary), judged at step 0 only
    accumulation: int = 1  # micro-batches in one optimizer step

    frozen: tuple[str, ...] = ()  # never trained
    stop_gradients: tuple[str, ...] = ()  # parameters from which gradient is kept away on purpose
    straight_through: tuple[str, ...] = ()  # parameters whose gradient is not that of the loss, on purpose
    conditional: tuple[str, ...] = ()  # parameters that some batches do not use

    no_weight_decay: tuple[str, ...] = ()
    warmup_steps: int = 0  # with a warm-up from 0, nothing moves in the first step
    deterministic: bool = True  # the same step twice gives the same gradient

    def is_frozen(self, name: str) -> bool:
        return matches(name, self.frozen)

    def expects_disagreement(self, name: str) -> bool:
        """Return whether the gradient of `name` may differ from the derivative of the loss."""
        return matches(name, self.stop_gradients) or matches(name, self.straight_through)

    def may_be_unused(self, name: str) -> bool:
        return matches(name, self.conditional)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether `name` is one of `patterns`, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def declarations(run: TrainingRun) -> Declared:
    """Return what the author of `run` declared, or the defaults."""
    declared = getattr(run, "declared", None)
    return declared if isinstance(declared, Declared) else Declared()
