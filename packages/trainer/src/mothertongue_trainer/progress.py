"""How long work says how far it is: the library calls back, only the command line draws."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

# What is being done, how many are done, how many there are (None: unknown).
Progress: TypeAlias = Callable[[str, int, int | None], None]


def silent(what: str, done: int, total: int | None) -> None:
    """Ignore progress: the default of every library function."""


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """Draw progress on standard error while the context lasts; nothing if `quiet` or where no terminal is."""
    # Deferred: library functions import this module for its type.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("     {task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Bar(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def show(what: str, done: int, total: int | None) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield show
