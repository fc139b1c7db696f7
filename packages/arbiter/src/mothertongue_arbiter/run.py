"""What a training program hands over to be audited: a `TrainingRun`.

Three members are required. Each further member unlocks checks; what is missing puts them under `not_run`.

| optional member | what it is | what it unlocks |
|---|---|---|
| `forward(model, batch)` | the logits, (B, T, V) | causality, batch and document independence |
| `targets(batch)` | (B, T) label that each position should learn, negative where none | exact labels |
| `documents(step, rank)` | (B, T) number of the document of each token of `batch(step)` | document isolation |
| `micro_batches(step, rank)` | the batches of one optimizer step | accumulation |
| `optimizer` | an object, or a list of objects, with `param_groups` and `step()` | coverage |
| `train_step(step)` | the whole step on `model`, as the program really does it | what moved, gradient handed over |
| `checkpoint()`, `resume(state)` | everything a step changes, and its restoration | restoring after `train_step` |
| `rebuild(dtype)` | a fresh run with its own model, optimizer and data; `dtype` None: its own | destructive tests |
| `eval_batches(i)` | the i-th held-out batch | (later) train/held-out overlap |
| `declared` | what the author believes, a `Declared` | judging instead of guessing |

A batch may be a tensor, a tuple or a dict; its token ids are the integer tensor named `input_ids` or `tokens`, else
the first integer tensor with two dimensions. `batch(step)` must give the same batch each time it is asked.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """What the author believes. Names are those of `model.named_parameters()`, or patterns as `*.norm.weight`."""

    vocabulary: int | None = None  # default: the last dimension of the logits
    causal: bool = True
    isolated_documents: bool = False  # no token sees another document of its row
    independent_rows: bool = True  # no row of a batch sees another
    tied: tuple[tuple[str, str], ...] = ()  # attribute paths of weights that must be one tensor

    labels: Literal["next", "other"] = "next"  # "next": position t learns token t + 1 of its row
    supervised: Literal["all", "some"] = "all"  # "some": as chat, where only answers are learned
    must_learn: tuple[int, ...] = ()  # token ids that are learned wherever they occur, as end-of-text
    normalisation: Literal["tokens", "sum", "other"] = "tokens"  # "tokens": mean over supervised tokens
    initial_loss: float | None = None  # nats per token; default ln(vocabulary), judged at step 0 only
    accumulation: int = 1  # micro-batches in one optimizer step

    frozen: tuple[str, ...] = ()  # never trained
    stop_gradients: tuple[str, ...] = ()  # parameters from which gradient is kept away on purpose
    straight_through: tuple[str, ...] = ()  # parameters whose gradient is not that of the loss, on purpose
    conditional: tuple[str, ...] = ()  # parameters that some batches do not use

    no_weight_decay: tuple[str, ...] = ()
    learning_rate: Callable[[int], float] | None = (
        None  # of the step; a warm-up from 0 moves nothing at first
    )
    warmup_steps: int = 0
    gradient_clip: float | None = None  # global norm
    compute_dtype: str | None = None  # "bfloat16", "float32": in which precision the run computes
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
