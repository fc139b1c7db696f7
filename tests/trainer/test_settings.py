from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from mothertongue_trainer.settings import MISSING, read_settings


@dataclass(frozen=True, kw_only=True)
class Inner:
    size: int


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    rate: float = 0.5
    colour: Literal["red", "blue"] = "red"
    names: tuple[str, ...] = ()
    shares: dict[str, float] = field(default_factory=dict)
    limit: int | None = None
    parts: tuple[Inner, ...] = ()


def read(values: dict[str, Any]) -> tuple[Outer, list[str]]:
    problems: list[str] = []
    return read_settings(Outer, values, place="", problems=problems), problems


def test_values_become_the_annotated_types() -> None:
    values = {
        "inner": {"size": 3}, "rate": 2, "colour": "blue", "names": ["a"], "shares": {"x": 1}, "limit": 4,
        "parts": [{"size": 1}],
    }  # fmt: skip
    outer, problems = read(values)
    assert problems == []
    assert outer == Outer(
        inner=Inner(size=3), rate=2.0, colour="blue", names=("a",), shares={"x": 1.0}, limit=4,
        parts=(Inner(size=1),),
    )  # fmt: skip
    assert isinstance(outer.rate, float)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"inner": {"size": 1.5}}, "inner.size: 1.5 found, a whole number expected"),
        ({"inner": {"size": True}}, "inner.size: True found, a whole number expected"),
        ({"inner": 3}, "inner: 3 found, a table expected"),
        ({"inner": {}}, "inner.size: missing"),
        ({}, "inner: missing"),
        ({"inner": {"size": 1}, "rate": "fast"}, "rate: 'fast' found, a number expected"),
        ({"inner": {"size": 1}, "colour": "green"}, "colour: 'green' found, 'red' or 'blue' expected"),
        ({"inner": {"size": 1}, "names": ["a", 1]}, "names[1]: 1 found, text in quotes expected"),
        ({"inner": {"size": 1}, "names": "a"}, "names: 'a' found, a list, each text in quotes expected"),
        ({"inner": {"size": 1}, "shares": {"x": "y"}}, "shares.x: 'y' found, a number expected"),
        ({"inner": {"size": 1}, "parts": [{"sise": 1}]}, "parts[0].sise: unknown key; did you mean 'size'?"),
        ({"inner": {"size": 1}, "zzzz": 1}, "zzzz: unknown key; known are colour, inner, limit"),
    ],
)
def test_a_wrong_value_is_described_where_it_stands(values: dict[str, Any], problem: str) -> None:
    _, problems = read(values)
    assert any(found.startswith(problem) for found in problems), problems


def test_a_half_read_result_is_missing_not_partial() -> None:
    outer, problems = read({"inner": {"size": "x"}})
    assert problems
    assert outer is MISSING
