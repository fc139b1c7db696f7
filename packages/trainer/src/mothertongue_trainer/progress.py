"""How long work says how far it is: the library calls back, only the command line draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

# What is being done, how many are done, how many there are (None: unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress: the default of every library function."""
