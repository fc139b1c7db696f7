"""Know rows of tokens again, without reading them on the host."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mothertongue_arbiter.torch.run.batches import token_ids

SEED = 0x6D6F74686572  # of the multipliers; any constant will do


def row_hashes(batch: Any) -> Tensor | None:
    """Return a 64-bit hash of each row of token ids in `batch` (B,), on their device; None without ids.

    `batch` may be a list of micro-batches, whose rows follow each other. The hash is the sum of ids times
    fixed random odd numbers modulo 2^64. A row that only repeats one token, as padding, has the hash 0.
    """
    several = isinstance(batch, list) and not isinstance(batch[0] if batch else None, Tensor)
    found = [ids for part in (batch if several else [batch]) if (ids := token_ids(part)) is not None]
    hashes = [_hashes(ids) for ids in found if ids.numel()]
    return torch.cat(hashes) if hashes else None


@torch.no_grad()
def _hashes(ids: Tensor) -> Tensor:
    ids = ids.detach().long()
    constant = (ids == ids[:, :1]).all(1)
    # One is added, so that tokens 0 at the end of a longer row count.
    sums = ((ids + 1) * _multipliers(ids.shape[1], str(ids.device))).sum(1)
    return sums.masked_fill(constant, 0)


@lru_cache(maxsize=64)
def _multipliers(count: int, device: str) -> Tensor:
    random = np.random.default_rng(SEED).integers(-(2**63), 2**63 - 1, count, dtype=np.int64)
    return torch.from_numpy(random | 1).to(device)
