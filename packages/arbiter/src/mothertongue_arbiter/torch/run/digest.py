"""Digests of tensors: equal bits, equal digest; small enough to keep one for every step."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

DIGEST_BYTES = 16
DEEPEST = 8  # of containers in containers


def digest(tensor: Tensor) -> bytes:
    """Return a digest of the dtype, the shape and the bits of `tensor`."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    plain = tensor.detach().cpu().contiguous()
    head = f"{plain.dtype}{tuple(plain.shape)}".encode()
    hashed = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
    hashed.update(plain.reshape(-1).view(torch.uint8).numpy().data)
    return hashed.digest()


def leaves(value: Any, path: str = "", depth: int = DEEPEST) -> Iterator[tuple[str, Any]]:
    """Yield the tensors and numbers inside nested containers, each with its path."""
    if isinstance(value, Tensor | bool | int | float):
        yield path, value
    elif depth and isinstance(value, Mapping):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}" if path else str(key), depth - 1)
    elif depth and isinstance(value, list | tuple):
        for number, part in enumerate(value):
            yield from leaves(part, f"{path}.{number}" if path else str(number), depth - 1)


def digests(value: Any, path: str = "") -> dict[str, Any]:
    """Return every leaf of `value` by its path: a tensor as its digest, a number as itself."""
    return {name: digest(leaf) if isinstance(leaf, Tensor) else leaf for name, leaf in leaves(value, path)}
