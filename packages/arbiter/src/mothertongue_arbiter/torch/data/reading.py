"""What a model really reads: the token ids that reach it, whoever called it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mothertongue_arbiter.torch.run.batches import token_ids


@dataclass(kw_only=True)
class Reading:
    """The token ids (B, T) that each of some models was given, in order."""

    ids: list[list[Tensor]] = field(default_factory=list)  # one list a model


@contextmanager
def watched_reading(models: Sequence[nn.Module]) -> Iterator[Reading]:
    """Collect what `models` read inside; a model that is never called as a whole reads by its embeddings."""
    whole: list[list[Tensor]] = [[] for _ in models]
    looked_up: list[list[Tensor]] = [[] for _ in models]
    reading = Reading()
    with ExitStack() as hooks:
        for number, model in enumerate(models):
            hook = _kept_in(whole[number], but_positions=False)
            hooks.callback(model.register_forward_pre_hook(hook, with_kwargs=True).remove)
            for module in model.modules():
                if isinstance(module, nn.Embedding) and module is not model:
                    hook = _kept_in(looked_up[number], but_positions=True)
                    hooks.callback(module.register_forward_pre_hook(hook, with_kwargs=True).remove)
        yield reading
    reading.ids = [called or inner for called, inner in zip(whole, looked_up, strict=True)]


def _kept_in(kept: list[Tensor], *, but_positions: bool) -> Any:
    def keep(module: nn.Module, args: Any, kwargs: Any) -> None:
        ids = token_ids(kwargs)
        ids = token_ids(args) if ids is None else ids
        if ids is not None and not (but_positions and _are_positions(ids)):
            kept.append(ids.detach().cpu().clone())

    return keep


def _are_positions(ids: Tensor) -> bool:
    """Return whether every row counts up from its first entry, as position ids do."""
    return ids.shape[1] > 1 and bool((ids == ids[:1]).all()) and bool((ids[0].diff() == 1).all())


def same_tokens(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Return whether the same token ids were read, in the same order."""
    return len(one) == len(other) and all(map(torch.equal, one, other))
