"""Run the battery, the baselines and the other tools over the whole zoo, and keep the score.

make bench-arbiter
PYTHONPATH=benchmarks python -m faults --only 'c*' --no-tools       a part; the other rows stay
"""

import json
import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import click
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from faults.architectures import ARCHITECTURES
from faults.assessment import FAULT_OF, assess, cases, without_an_answer
from faults.baselines import Band, Settings, healthy_band, settings_of
from faults.processes import Failed, answered
from faults.score import summary, tables
from faults.tools.environment import prepared, verdicts
from mothertongue_arbiter import __version__

ROOT = Path(__file__).parents[2]
RESULT = ROOT / "benchmarks" / "results" / "arbiter-faults.json"
SCORE = ROOT / "packages" / "arbiter" / "src" / "mothertongue_arbiter" / "mutation_score.json"
CORES = len(os.sched_getaffinity(0))
LIMIT_SECONDS = 120  # of one case
# Imported once, not once a case.
PRELOAD = (
    "faults.assessment",
    "mothertongue_arbiter.torch.battery",
    "transformers.models.auto.modeling_auto",
)

Rows = dict[str, dict[str, Any]]


@click.command()
@click.option("--only", multiple=True, help="Only cases whose name matches this pattern; may be repeated.")
@click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=len(os.sched_getaffinity(0)),
    show_default=True,
    help="Processes.",
)
@click.option("--tools/--no-tools", default=True, show_default=True, help="Also ask the other checkers.")
@click.option("--result", type=click.Path(path_type=Path, dir_okay=False), default=RESULT, show_default=True)
def main(only: tuple[str, ...], jobs: int, tools: bool, result: Path) -> None:
    """Score the battery on the fault zoo; writes benchmarks/results/arbiter-faults.json."""
    names = [name for name in cases() if not only or any(fnmatchcase(name, pattern) for pattern in only)]
    if not names:
        raise click.UsageError(f"no case matches {', '.join(only)}")
    rows = earlier_rows(result) if only else {}
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        for name, row in assessed(names, jobs, progress):
            rows[name] = row | ({"tools": rows[name]["tools"]} if "tools" in rows.get(name, {}) else {})
            keep(rows, result)
        if tools:
            known = [name for name in names if name not in ARCHITECTURES]  # they know no transformers
            task = progress.add_task("other tools", total=len(known))
            try:
                for name, answers in verdicts(prepared(), known, jobs=jobs):
                    rows[name]["tools"] = answers
                    progress.advance(task)
            except (OSError, RuntimeError, CalledProcessError) as error:
                click.echo(f"The other tools were not all asked: {error}", err=True)
    keep(rows, result)
    faults, healthy = parted(rows)
    for table in tables(faults, healthy):
        Console().print(table)
    for line in surprises(faults, healthy):
        print(line)


def assessed(names: list[str], jobs: int, progress: Progress) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each case with its row, as they come."""
    wanted = {name: settings_of(FAULT_OF[name].sound) for name in names if name in FAULT_OF}
    bands: dict[Settings, Band] = {}
    task = progress.add_task("healthy loss curves", total=len(set(wanted.values())))
    for settings, band in asked(healthy_band, sorted(set(wanted.values())), jobs):
        if isinstance(band, Failed):
            raise click.ClickException(f"a sound run, {dict(settings)}, does not train: {band.reason}")
        bands[settings] = band
        progress.advance(task)
    task = progress.add_task("cases", total=len(names))
    cases_with_band = [(name, bands[wanted[name]] if name in wanted else None) for name in names]
    for (name, _), row in asked(assess, cases_with_band, jobs):
        progress.advance(task)
        yield name, without_an_answer(name, row.reason) if isinstance(row, Failed) else row


def asked(ask: Callable[[Any], Any], questions: list[Any], jobs: int) -> Iterator[tuple[Any, Any]]:
    return answered(ask, questions, jobs=jobs, limit_seconds=LIMIT_SECONDS, preload=PRELOAD)


def parted(rows: Rows) -> tuple[Rows, Rows]:
    faults = {name: row for name, row in rows.items() if name in FAULT_OF}
    return faults, {name: row for name, row in rows.items() if name not in FAULT_OF}


def surprises(faults: Rows, healthy: Rows) -> Iterator[str]:
    """Yield a line for each fault that nothing found, and each healthy run that is not simply passed."""
    for name, row in sorted(faults.items()):
        if not row["failed"]:
            yield f"missed: {name}, {row['source']} {'; '.join(row['inconclusive'])}"
    for name, row in sorted(healthy.items()):
        if row["failed"]:
            yield f"false alarm: {name}: {', '.join(row['failed'])}"
        elif row["inconclusive"]:
            yield f"inconclusive: {name}: {'; '.join(row['inconclusive'])}"


def earlier_rows(path: Path) -> Rows:
    """Return the rows of an earlier run, of cases that still exist."""
    if not path.exists():
        return {}
    result = json.loads(path.read_text(encoding="utf-8"))
    known = set(cases())
    return {name: row for name, row in (result["faults"] | result["healthy"]).items() if name in known}


def keep(rows: Rows, path: Path) -> None:
    """Write the result, sorted, a line a case; a whole one also becomes the score of each certificate."""
    faults, healthy = parted(rows)
    figures = summary(faults, healthy)
    parts = [f' "summary": {json.dumps(figures)}']
    for title, group in (("faults", faults), ("healthy", healthy)):
        lines = [f"  {json.dumps(name)}: {json.dumps(group[name], sort_keys=True)}" for name in sorted(group)]
        parts.append(f' "{title}": {{\n' + ",\n".join(lines) + "\n }")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".partial")
    fresh.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    fresh.replace(path)  # whoever stops this has the rows so far
    if path == RESULT and set(rows) == set(cases()):
        SCORE.write_text(json.dumps(figures | {"battery": __version__}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
