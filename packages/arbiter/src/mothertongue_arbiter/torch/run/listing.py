"""Documents as an author lists them: their token ids, or the number of the document of each token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Ids = npt.NDArray[np.int64]  # (T,)


def listed_documents(documents: Any, ids: Tensor) -> list[Ids] | None:
    """Return the documents as token ids; None where they are given as a number for each token."""
    if isinstance(documents, Tensor | np.ndarray) or not isinstance(documents, Sequence):
        return None
    if not all(hasattr(one, "__len__") for one in documents):
        return None
    found = [np.asarray(one, dtype=np.int64).ravel() for one in documents]
    shape = (len(found), *{len(one) for one in found})
    if shape == tuple(ids.shape):
        table = np.stack(found)
        counts_up = (
            bool((np.diff(table, axis=1) >= 0).all()) and int(np.diff(table, axis=1).max(initial=0)) <= 1
        )
        if counts_up and not np.array_equal(table, ids.cpu().numpy()):
            return None
    return [one for one in found if len(one)]


def numbered(documents: Sequence[Ids], ids: Tensor) -> Tensor | None:
    """Return the number of the document of each token (B, T), if `documents` follow each other in `ids`."""
    tokens = np.concatenate(documents) if documents else np.zeros(0, np.int64)
    if not np.array_equal(tokens[: ids.numel()], ids.cpu().numpy().ravel()):
        return None
    lengths = torch.tensor([len(one) for one in documents])
    numbers = torch.arange(len(documents)).repeat_interleave(lengths)[: ids.numel()]
    return numbers.reshape(ids.shape).to(ids.device)
