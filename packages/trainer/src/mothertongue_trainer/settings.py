"""Read nested frozen dataclasses from plain TOML values, strictly.

Every problem is collected with its place, so that a reader mends a file once. An unknown key names its
nearest neighbour; nothing is guessed and nothing is dropped.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

S = TypeVar("S")

MISSING: Any = object()  # stands for a value that could not be read; a problem says why


def read_settings(kind: type[S], values: Mapping[str, Any], *, place: str, problems: list[str]) -> S:
    """Return a `kind` (a dataclass) made from `values`; append one sentence to `problems` for each fault.

    With problems the result is `MISSING` or half-read and must not be used.
    """
    fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, kind))}
    hints = typing.get_type_hints(kind)
    arguments: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{place}.{key}" if place else key
        if key in fields:
            arguments[key] = _read_value(hints[key], value, where, problems)
        else:
            problems.append(f"{where}: unknown key{_suggestion(key, fields)}")
    for name, field in fields.items():
        has_default = (
            field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        )
        if name not in values and not has_default:
            problems.append(f"{place + '.' if place else ''}{name}: missing")
            arguments[name] = MISSING
    if any(value is MISSING for value in arguments.values()):
        return typing.cast(S, MISSING)
    return kind(**arguments)


def _suggestion(key: str, known: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f"; did you mean '{near[0]}'?" if near else f"; known are {', '.join(sorted(known))}"


def _read_value(hint: Any, value: Any, where: str, problems: list[str]) -> Any:
    """Return `value` as the annotated type `hint`, or MISSING after noting the problem."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):  # only `X | None` is used in recipes
        hint = next(option for option in options if option is not types.NoneType)
        return _read_value(hint, value, where, problems)
    if origin is tuple and isinstance(value, list):
        items = [_read_value(options[0], item, f"{where}[{i}]", problems) for i, item in enumerate(value)]
        return MISSING if any(item is MISSING for item in items) else tuple(items)
    if origin is dict and isinstance(value, dict):
        read = {key: _read_value(options[1], item, f"{where}.{key}", problems) for key, item in value.items()}
        return MISSING if any(item is MISSING for item in read.values()) else read
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return read_settings(typing.cast(type[Any], hint), value, place=where, problems=problems)
    if origin is typing.Literal and value in options:
        return value
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    problems.append(f"{where}: {value!r} found, {_describe(hint)} expected")
    return MISSING


def _describe(hint: Any) -> str:
    """Name a type the way a recipe's author would."""
    origin, options = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(repr(option) for option in options)
    if origin is tuple:
        return f"a list, each {_describe(options[0])}"
    if origin is dict or dataclasses.is_dataclass(hint):
        return "a table"
    names = {str: "text in quotes", int: "a whole number", float: "a number", bool: "true or false"}
    return names.get(hint, str(hint))
