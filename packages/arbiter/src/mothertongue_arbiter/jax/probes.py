"""Ask the forward of a JAX program whether tokens and rows see what they should not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.certificate import Check, Verdict
from mothertongue_arbiter.errors import ArbiterError

ID_NAMES = ("input_ids", "tokens", "ids", "inputs", "x")
LARGEST_MOVE = 1e-9  # of the largest logit; float64 sums in another order differ by 1e-13
LARGEST_MOVE_ROUNDED = 1e-3  # where the forward rounds to lower precision inside
Forward = Callable[[Any, Any], Any]


def token_ids(batch: Any) -> NDArray[Any] | None:
    """Return the (B, T) token ids of `batch`; None when it has none."""
    named = [batch[name] for name in ID_NAMES if name in batch] if isinstance(batch, Mapping) else []
    leaves = [*named, *jax.tree_util.tree_leaves(batch)]
    return next((np.asarray(leaf) for leaf in leaves if _is_ids(leaf)), None)


def causality(forward: Forward, params: Any, batch: Any, *, rounds: bool) -> Check:
    """The logits of a position do not depend on later tokens."""
    ids = _ids(batch)
    middle = ids.shape[1] // 2
    changed = ids.copy()
    changed[:, middle:] = _others(ids)[:, middle:]
    before, after = _logits(forward, params, batch), _logits(forward, params, _with_ids(batch, changed))
    moved, stirred = (
        _apart(before[:, :middle], after[:, :middle]),
        _apart(before[:, middle:], after[:, middle:]),
    )
    return _judged(
        "causality", moved, stirred, rounds, "earlier logits", "later tokens change", "a missing causal mask"
    )


def independent_rows(forward: Forward, params: Any, batch: Any, *, rounds: bool) -> Check:
    """The logits of a row do not depend on the other rows."""
    ids = _ids(batch)
    changed = ids.copy()
    changed[1:] = _others(ids)[1:]
    before, after = _logits(forward, params, batch), _logits(forward, params, _with_ids(batch, changed))
    moved, stirred = _apart(before[:1], after[:1]), _apart(before[1:], after[1:])
    return _judged(
        "independent rows", moved, stirred, rounds, "logits of a row", "other rows change",
        "an operation over the batch axis",
    )  # fmt: skip


def _judged(name: str, moved: float, stirred: float, rounds: bool, what: str, when: str, cause: str) -> Check:
    allowed = LARGEST_MOVE_ROUNDED if rounds else LARGEST_MOVE
    if stirred <= allowed:
        evidence = f"no logit moves when {when}, so the probe proves nothing"
        return Check(name=name, verdict=Verdict.INCONCLUSIVE, evidence=evidence)
    good = moved <= allowed
    return Check(
        name=name,
        verdict=Verdict.PASS if good else Verdict.FAIL,
        evidence=f"{what} move by {moved:.1e} of the largest when {when}",
        cause="" if good else cause,
    )


def _logits(forward: Forward, params: Any, batch: Any) -> NDArray[np.float64]:
    logits = np.asarray(forward(params, batch))
    if logits.ndim != 3:
        raise ArbiterError(
            f"forward: shape {logits.shape} found, logits of (rows, tokens, vocabulary) expected"
        )
    return logits.astype(np.float64)


def _apart(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    largest = max(float(np.abs(one).max(initial=0.0)), 1e-30)
    return float(np.abs(one - other).max(initial=0.0)) / largest


def _others(ids: NDArray[Any]) -> NDArray[Any]:
    """Return, for each token, another one that occurs in the batch, so that no id is out of range."""
    known, positions = np.unique(ids, return_inverse=True)
    return known[(positions.reshape(ids.shape) + 1) % len(known)]


def _with_ids(batch: Any, ids: NDArray[Any]) -> Any:
    old = token_ids(batch)
    assert old is not None

    def replaced(leaf: Any) -> Any:
        same = _is_ids(leaf) and np.asarray(leaf).shape == old.shape and np.array_equal(np.asarray(leaf), old)
        return jnp.asarray(ids, dtype=leaf.dtype) if same else leaf

    return jax.tree_util.tree_map(replaced, batch)


def _ids(batch: Any) -> NDArray[Any]:
    ids = token_ids(batch)
    if ids is None or min(ids.shape) < 2:
        raise ArbiterError("the batch holds no integer array of at least two rows of two tokens")
    return ids


def _is_ids(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and np.ndim(leaf) == 2 and bool(jnp.issubdtype(leaf.dtype, jnp.integer))
