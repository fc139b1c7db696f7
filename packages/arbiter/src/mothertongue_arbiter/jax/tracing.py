"""What a loss does, read from its jaxpr: where it leaves float64, and in which order it uses parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mothertongue_arbiter.jax.trees import Parameters


@dataclass(frozen=True, kw_only=True)
class Trace:
    """`order` has the names of the parameters by first use; `casts` one place for each lower cast."""

    order: tuple[str, ...]
    casts: tuple[str, ...]
    problem: str = ""  # why the loss could not be traced; then the two above say nothing


def trace(loss: Callable[[Any, Any], Any], parameters: Parameters, batch: Any) -> Trace:
    """Trace `loss` in float64. Call it where float64 is enabled."""
    tree = parameters.tree()
    try:
        closed = jax.make_jaxpr(lambda params: loss(params, batch))(tree)
    except Exception as error:  # the program may need concrete values; it then runs untraced
        first_line = (str(error).splitlines() or [""])[0]
        return Trace(order=tuple(parameters.names), casts=(), problem=f"{type(error).__name__}: {first_line}")
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(tree)[0]]
    assert len(paths) == len(closed.jaxpr.invars)
    names = {variable: number for number, variable in enumerate(closed.jaxpr.invars)}
    seen: dict[int, None] = {}
    _note_uses(closed.jaxpr, names, seen)
    leaves = list(parameters.all_names)
    used = [leaves[number] for number in seen if leaves[number] in parameters.values]
    rest = [name for name in parameters.names if name not in used]
    casts = dict.fromkeys(_cast(equation) for equation in _equations(closed.jaxpr) if _lowers(equation))
    return Trace(order=(*used, *rest), casts=tuple(casts))


def _note_uses(jaxpr: Any, numbers: dict[Any, int], seen: dict[int, None]) -> None:
    """Add the parameters that `jaxpr` uses to `seen`, in order; inner jaxprs of a call take its place."""
    for equation in jaxpr.eqns:
        used = [numbers.get(variable) if _is_variable(variable) else None for variable in equation.invars]
        if all(number is None for number in used):
            continue
        called = [inner for inner in _inner(equation) if len(inner.invars) == len(used)]
        if called:
            pairs = zip(called[0].invars, used, strict=True)
            _note_uses(called[0], {one: number for one, number in pairs if number is not None}, seen)
        seen.update((number, None) for number in used if number is not None and number not in seen)


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inner(equation):
            yield from _equations(inner)


def _inner(equation: Any) -> Iterator[Any]:
    """Yield the jaxprs that an equation calls: of jit, scan, cond, custom_vjp and their like."""
    for value in equation.params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(one, "jaxpr", one)
            if hasattr(inner, "eqns"):
                yield inner


def _lowers(equation: Any) -> bool:
    """Return whether an equation makes less than float64 of float64."""
    if equation.primitive.name == "reduce_precision":
        return True
    if any(True for _ in _inner(equation)):  # its own equations tell
        return False
    return any(map(_is_double, equation.invars)) and any(map(_is_lower, equation.outvars))


def _is_double(variable: Any) -> bool:
    return bool(getattr(variable.aval, "dtype", None) == jnp.float64)


def _is_lower(variable: Any) -> bool:
    dtype = getattr(variable.aval, "dtype", None)
    return dtype is not None and dtype != jnp.float64 and bool(jnp.issubdtype(dtype, jnp.floating))


def _is_variable(value: Any) -> bool:
    return not hasattr(value, "val")  # a literal has a value, and no hash


def _cast(equation: Any) -> str:
    dtype = next((str(one.aval.dtype) for one in equation.outvars if _is_lower(one)), "lower precision")
    return f"to {dtype} at {_place(equation)}"


def _place(equation: Any) -> str:
    """Return file, line and function of the program where an equation was made."""
    traceback = getattr(equation.source_info, "traceback", None)
    library = str(Path(jax.__file__).parent)
    for frame in traceback.frames if traceback is not None else ():
        if not frame.file_name.startswith((library, "<")) and frame.function_name != "trace":
            return f"{Path(frame.file_name).name}:{frame.line_num} ({frame.function_name.split('.')[-1]})"
    return "an unknown place"
