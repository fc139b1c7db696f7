"""Pytrees of parameters and batches as named arrays, in float64 and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.experimental
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from mothertongue_arbiter.errors import ArbiterError

Array = NDArray[np.float64]


def float64_enabled() -> AbstractContextManager[Any]:
    """Let JAX compute in float64 inside, and only there."""
    if hasattr(jax, "enable_x64"):
        inside: AbstractContextManager[Any] = jax.enable_x64(True)
        return inside
    older: AbstractContextManager[Any] = jax.experimental.enable_x64()  # type: ignore[attr-defined]
    return older


class Parameters:
    """The floating-point leaves of a pytree under dotted names, as `blocks.0.norm`."""

    def __init__(self, tree: Any) -> None:
        leaves, self._structure = jax.tree_util.tree_flatten_with_path(tree)
        self._names = self.all_names = [_dotted(path) for path, _ in leaves]
        self._leaves = [leaf for _, leaf in leaves]
        self.names = [name for name, leaf in zip(self._names, self._leaves, strict=True) if is_floating(leaf)]
        if not self.names:
            raise ArbiterError("params: no floating-point array found; hand over the tree that is trained")
        if len(set(self._names)) < len(self._names):
            raise ArbiterError("params: two leaves have one dotted name; rename the key that has a dot")
        self.shapes = {name: np.shape(leaf) for name, leaf in self._floating()}
        self.dtypes = {name: str(jnp.result_type(leaf)) for name, leaf in self._floating()}
        self.values: dict[str, Array] = {
            name: np.asarray(leaf).astype(np.float64) for name, leaf in self._floating()
        }

    def tree(self, moved: Mapping[str, Array] | None = None) -> Any:
        """Return the tree in float64, the arrays in `moved` in the place of their own."""
        new = self.values | dict(moved or {})
        leaves = [
            jnp.asarray(new[name]) if name in new else leaf
            for name, leaf in zip(self._names, self._leaves, strict=True)
        ]
        return jax.tree_util.tree_unflatten(self._structure, leaves)

    def named(self, tree: Any) -> dict[str, Any]:
        """Return the leaves of a tree of gradients by name; absent where there is none.

        Raises:
            ArbiterError: the tree has another structure or shapes than the parameters.
        """
        leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
        found = {_dotted(path): leaf for path, leaf in leaves}
        for name in self.names:
            if name in found and np.shape(found[name]) != self.shapes[name]:
                raise ArbiterError(
                    f"gradients: {name} has shape {np.shape(found[name])}, its parameter {self.shapes[name]}"
                )
        if strange := sorted(set(found) - set(self._names)):
            raise ArbiterError(f"gradients: no parameter is called {strange[0]}; return the tree of params")
        return {name: found[name] for name in self.names if name in found}

    def _floating(self) -> list[tuple[str, Any]]:
        pairs = zip(self._names, self._leaves, strict=True)
        return [(name, leaf) for name, leaf in pairs if is_floating(leaf)]


def is_floating(leaf: Any) -> bool:
    """Return whether `leaf` is an array, or a number, of a floating-point type."""
    if isinstance(leaf, float):
        return True
    return hasattr(leaf, "dtype") and bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def in_float64(tree: Any) -> Any:
    """Return `tree` with its floating-point leaves in float64."""
    return mapped(tree, lambda leaf: jnp.asarray(np.asarray(leaf).astype(np.float64)), is_floating)


def mapped(tree: Any, change: Callable[[Any], Any], where: Callable[[Any], bool]) -> Any:
    """Return `tree` with `change` applied to the leaves for which `where` holds."""
    return jax.tree_util.tree_map(lambda leaf: change(leaf) if where(leaf) else leaf, tree)


def _dotted(path: tuple[Any, ...]) -> str:
    return ".".join(str(_key(entry)) for entry in path) or "params"


def _key(entry: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        if hasattr(entry, attribute):
            return getattr(entry, attribute)
    return entry
