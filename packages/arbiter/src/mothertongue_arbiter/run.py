"""What a training program hands over to be audited: a `TrainingRun`.

`model`, `loss` and `batch` are required. Each further member unlocks checks, and what is missing is listed
under `not_run` with its reason:

    forward(model, batch)        logits (B, T, V): causality, independence of rows, documents, padding, order
    reference(model, batch)      logits of an independent plain forward of the same weights: equality with it
    targets(batch)               (B, T) label of each position, negative where it has none: exact labels
    documents(step, rank)        what the author believes is in `batch(step)`: the number of the document of
                                 each token (B, T), or the documents themselves, a list of lists of ids
    micro_batches(step, rank)    the batches of one optimizer step on one rank: accumulation, rank data
    replicas                     the models of all ranks, `model` first: their weights must agree
    optimizer                    an object with `param_groups` and `step()`, or a list, one a rank: coverage
    train_step(step)             the whole step, of all ranks, as the program does it: what moves, and how
    checkpoint(), resume(state)  everything that a step changes, and its restoration: exact resume
    eval_batches(i)              batch i of the held-out part: overlap with the training text
    evaluate()                   the mean loss of held-out batches, as the program reports it: mode and size
    ema                          the averaged weights, a module or a mapping of name to tensor
    rebuild(dtype)               a fresh run like this one before its first step: float64, resume, determinism
    declared                     what the author believes, a `Declared` or a mapping of its fields
    options                      how much is asked, an `audit.Options`; the command and `audit` ask so much
    scope                        what else the certificate depends on, name -> text: recipe, tokenizer, data
    notes                        sentences that the certificate repeats, as of rows that are not the real ones

More exactly:

    batch, with several ranks    the rows of all ranks, or of rank 0 alone: `micro_batches` tells which
    targets                      what position t learns: for plain text the token at t + 1
    optimizer                    finds its gradients at `grad` or `main_grad` of the weights; one that holds
                                 others, or steps them from hooks of the backward, is followed into those
    documents                    as lists: in the order of the rows, without padding, and one may run on into
                                 the next row; as numbers: any number where there is padding
    evaluate()                   takes nothing; a number, or a mapping with its "loss": nats, bits, perplexity
    rebuild(dtype)               casts the parameters and buffers of the model, nothing else (None: nothing);
                                 the cast model gives a loss, it takes no step: a bare module will do
    declared                     without one, labels and weights are not asked; `Declared()` promises its
                                 defaults: all next tokens, plain cross-entropy, mean over tokens
    declared.pad_token           may be the end-of-text as well: only at the ends of a row it is padding, and
                                 the first one after a text may be learned

A batch is a tensor, a tuple or a dict. Its token ids are the integer tensor named `input_ids` or `tokens`,
else the first integer tensor with two dimensions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, runtime_checkable

from mothertongue_arbiter.declared_optimizer import Optimizer
from mothertongue_arbiter.errors import ArbiterError


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
    order_matters: bool = True  # the order of earlier tokens changes the logits
    positions: Literal["relative", "absolute"] | None = None  # relative: a shift of all changes nothing
    pad_token: int | None = None  # the id that fills short rows
    tied: tuple[tuple[str, str], ...] = ()  # attribute paths of weights that must be one tensor
    architecture: Mapping[str, Any] | None = (
        None  # keys of a transformers config: a reference is built from it
    )

    labels: Literal["next", "other"] = "next"  # "next": position t learns token t + 1 of its row
    supervised: Literal["all", "some"] = "all"  # "some": as chat, where only answers are learned
    must_learn: tuple[int, ...] = ()  # token ids that every batch which has them must teach: end-of-text
    normalisation: Literal["tokens", "sum", "other"] = "tokens"  # "tokens": mean over supervised tokens
    label_smoothing: float = 0.0
    initial_loss: float | None = None  # nats per token; default ln(vocabulary), judged at step 0 only
    accumulation: int = 1  # micro-batches in one optimizer step of one rank
    ranks: int = 1  # processes that train together, each with data of its own
    epoch_steps: int | None = None  # optimizer steps in one pass over the data, each row of it once

    optimizer: Optimizer | None = None  # what a step does to the weights: see `declared_optimizer`
    ema_decay: float | None = None  # of `ema`, a step
    frozen: tuple[str, ...] = ()  # never trained
    trainable: tuple[str, ...] = ()  # if given, everything else is frozen
    stop_gradients: tuple[str, ...] = ()  # parameters from which gradient is kept away on purpose
    straight_through: tuple[str, ...] = ()  # parameters whose gradient is not that of the loss, on purpose
    gradient_scale: Mapping[str, float] = field(default_factory=dict)  # factors put on gradients on purpose
    conditional: tuple[str, ...] = ()  # parameters that some batches do not use

    no_weight_decay: tuple[str, ...] = ()
    warmup_steps: int = 0  # with a warm-up from 0, nothing moves in the first step
    deterministic: bool = True  # the same step twice gives the same gradient
    dtypes: Mapping[str, str] = field(default_factory=dict)  # of parameters, as {"*": "float32"}
    least_utilisation: float | None = None  # of the measured peak of the device, 0 to 1

    def is_frozen(self, name: str) -> bool:
        """Return whether `name` is never trained."""
        return matches(name, self.frozen) or bool(self.trainable and not matches(name, self.trainable))

    def expects_disagreement(self, name: str) -> bool:
        """Return whether the gradient of `name` may differ from the derivative of the loss."""
        return matches(name, self.stop_gradients) or matches(name, self.straight_through)

    def scale_of(self, name: str) -> float:
        """Return the factor that is put on the gradient of `name`, 1 if none is declared."""
        scales = [factor for pattern, factor in self.gradient_scale.items() if matches(name, (pattern,))]
        return scales[0] if scales else 1.0

    def may_be_unused(self, name: str) -> bool:
        return matches(name, self.conditional)


def matches(name: str, patterns: tuple[str, ...]) -> bool:
    """Return whether `name` is one of `patterns`, in which `*` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def declarations(run: TrainingRun) -> Declared:
    """Return what the author of `run` declared, or the defaults.

    Raises:
        ArbiterError: `declared` is neither a `Declared` nor a mapping of its fields.
    """
    declared = getattr(run, "declared", None)
    if declared is None or isinstance(declared, Declared):
        return declared or Declared()
    if not isinstance(declared, Mapping):
        found = type(declared).__name__
        raise ArbiterError(f"declared: a {found} found, a Declared or a mapping of its fields expected")
    known = [one.name for one in fields(Declared)]
    for name in declared:
        if name not in known:
            near = get_close_matches(str(name), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise ArbiterError(f"declared: unknown fact {name!r}{hint}")
    return Declared(**declared)
