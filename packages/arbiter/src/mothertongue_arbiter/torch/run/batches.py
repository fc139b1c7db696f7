"""Find the token ids in a batch of any shape, and change them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

ID_NAMES = ("input_ids", "tokens", "ids", "inputs", "x")
POSITION_NAMES = ("position_ids", "positions", "position", "pos")
MASK_NAMES = ("attention_mask", "padding_mask", "pad_mask")


def token_ids(batch: Any) -> Tensor | None:
    """Return the (B, T) token ids of `batch`; None when it has none."""
    if isinstance(batch, Tensor):
        return batch if _is_ids(batch) else None
    if isinstance(batch, dict):
        named = [batch[name] for name in ID_NAMES if isinstance(batch.get(name), Tensor)]
        candidates = [*named, *batch.values()]
    else:
        candidates = list(_parts(batch))
    return next((part for part in candidates if isinstance(part, Tensor) and _is_ids(part)), None)


def with_ids(batch: Any, ids: Tensor) -> Any:
    """Return `batch` with its token ids replaced by `ids`."""
    old = token_ids(batch)
    return batch if old is None else with_tensor(batch, old, ids)


def rows_of(batch: Any, rows: slice | list[int]) -> Any:
    """Return only these rows of every tensor of `batch` that has as many rows as the token ids."""
    ids = token_ids(batch)
    if ids is None:
        return batch
    count = len(ids)
    return mapped(batch, lambda tensor: tensor[rows] if tensor.dim() and len(tensor) == count else tensor)


def stretch_of(batch: Any, row: int, columns: slice) -> Any:
    """Return one stretch of one row as a batch of its own, cut from every tensor that has a value a token."""
    ids = token_ids(batch)
    assert ids is not None
    rows, length = ids.shape

    def cut(tensor: Tensor) -> Tensor:
        if not tensor.dim() or len(tensor) != rows:
            return tensor
        part = tensor[row : row + 1]
        if part.dim() > 2 and part.shape[-2:] == (length, length):  # a mask of which token sees which
            return part[..., columns, columns]
        return part[:, columns] if part.dim() > 1 and part.shape[1] == length else part

    return mapped(batch, cut)


def named_tensor(batch: Any, names: tuple[str, ...]) -> Tensor | None:
    """Return the first tensor of `batch`, a dict or named tuple, with one of `names` and a value a token."""
    ids = token_ids(batch)
    fields = batch._asdict() if hasattr(batch, "_asdict") else batch
    if ids is None or not isinstance(fields, dict):
        return None
    found = (fields.get(name) for name in names)
    return next((one for one in found if isinstance(one, Tensor) and one.shape[-1:] == ids.shape[-1:]), None)


def with_tensor(batch: Any, old: Tensor, new: Tensor) -> Any:
    """Return `batch` with its tensor `old` replaced by `new`."""
    return mapped(batch, lambda tensor: new if tensor is old else tensor)


def mapped(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Return `batch` with `change` applied to each of its tensors."""
    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, dict):
        return {name: mapped(value, change) for name, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(mapped(value, change) for value in batch))
    if isinstance(batch, list | tuple):
        return type(batch)(mapped(value, change) for value in batch)
    return batch


def in_float64(batch: Any) -> Any:
    """Return `batch` with its floating-point tensors in float64."""
    return mapped(batch, lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)


def other_ids(ids: Tensor) -> Tensor:
    """Return, for each token, another token that occurs in the same batch, so that no id is out of range."""
    known = torch.unique(ids)
    positions = torch.searchsorted(known, ids)
    others: Tensor = known[(positions + 1) % len(known)]
    return others


def _is_ids(tensor: Tensor) -> bool:
    integer = not tensor.is_floating_point() and not tensor.is_complex() and tensor.dtype != torch.bool
    return integer and tensor.dim() == 2 and tensor.dtype not in (torch.uint8, torch.int8)


def _parts(batch: Any) -> Iterator[Any]:
    if isinstance(batch, list | tuple):
        for part in batch:
            yield from _parts(part)
    elif isinstance(batch, dict):
        yield from batch.values()
    else:
        yield batch
