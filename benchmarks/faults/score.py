"""The score: how many faults each way of looking finds, and how many healthy runs it alarms on."""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

from rich.table import Table

from faults.families import FAMILIES

Row = Mapping[str, Any]
# What needs a second forward, written from the declaration.
REFERENCE_CHECKS = {"reference forward", "reference gradients"}
TOOLS = ("guardtower", "torch-audit", "torchdiag", "torchtest2")


def found(row: Row) -> bool:
    return bool(row["failed"])


def found_without_reference(row: Row) -> bool:
    return bool(set(row["failed"]) - REFERENCE_CHECKS)


def looks_wrong(row: Row) -> bool:
    """Whether somebody who knows the healthy curve would stop this one; a better loss stops nobody."""
    return row["curve"] in ("worse", "crashed")


def summary(faults: Mapping[str, Row], healthy: Mapping[str, Row]) -> dict[str, Any]:
    """Return the figures of the whole zoo, as they stand in docs and in the certificate."""
    rows, sound = list(faults.values()), list(healthy.values())
    placed = [row for row in rows if "localised" in row]
    return {
        "faults": len(rows),
        "caught": sum(map(found, rows)),
        "caught_without_reference": sum(map(found_without_reference, rows)),
        "healthy": len(sound),
        "alarms": sum(map(found, sound)),
        "inconclusive": sum(bool(row["inconclusive"]) and not row["failed"] for row in sound),
        "localised": sum(row["localised"] for row in placed),
        "gradient_faults": len(placed),
        "median_seconds": round(_median("seconds", [*rows, *sound]), 1),
        "median_steps": round(_median("steps", [*rows, *sound])),
    }


def _median(figure: str, rows: Iterable[Row]) -> float:
    """Return the median of a figure over the rows that have it."""
    return median([row[figure] for row in rows if row[figure]] or [0])


def families(faults: Mapping[str, Row]) -> dict[str, list[Row]]:
    return {
        family: [row for name, row in sorted(faults.items()) if row["family"] == family]
        for family in FAMILIES
    }


def share(rows: Iterable[Row], test: Callable[[Row], bool]) -> str:
    kept = list(rows)
    return f"{sum(map(test, kept))} / {len(kept)}"


def compared(faults: Mapping[str, Row], healthy: Mapping[str, Row]) -> list[tuple[str, str, str]]:
    """Return (way of looking, faults found, healthy runs alarmed)."""
    rows, sound = list(faults.values()), list(healthy.values())
    lines = [
        ("this battery, with a reference forward", share(rows, found), share(sound, found)),
        (
            "this battery, without",
            share(rows, found_without_reference),
            share(sound, found_without_reference),
        ),
        (
            "every gradient finite and nonzero (the original arbiter)",
            share(rows, lambda row: row["nonzero_alarm"]),
            share(sound, lambda row: row["nonzero_alarm"]),
        ),
        ("loss curve worse than healthy seeds", share(rows, looks_wrong), "by definition"),
    ]
    for tool in TOOLS:
        asked = [row for row in rows if tool in row.get("tools", {})]
        calm = [row for row in sound if tool in row.get("tools", {})]
        lines.append((tool, _levels(asked, tool), _levels(calm, tool)))
    return lines


def _levels(rows: list[Row], tool: str) -> str:
    answers = [row["tools"][tool] for row in rows]
    if not answers or all(answer == "not installed" for answer in answers):
        return "not installed"
    errors, warnings = answers.count("error"), answers.count("warning")
    crashed = sum(answer.startswith("crashed") for answer in answers)
    more = f", {crashed} crashed" if crashed else ""
    return f"{errors} (+{warnings} warned{more}) / {len(answers)}"


def family_lines(faults: Mapping[str, Row]) -> list[tuple[str, ...]]:
    """Return (family, found without a reference, with one, localised, seconds, steps) of each family."""
    lines = []
    for family, rows in families(faults).items():
        if not rows:
            continue
        placed = [row for row in rows if "localised" in row]
        lines.append(
            (
                f"{family} {FAMILIES[family]}",
                share(rows, found_without_reference),
                share(rows, found),
                share(placed, lambda row: row["localised"]) if placed else "",
                f"{_median('seconds', rows):.1f}",
                f"{_median('steps', rows):.0f}",
            )
        )
    return lines


def tables(faults: Mapping[str, Row], healthy: Mapping[str, Row]) -> list[Table]:
    """Return the score as tables for a terminal."""
    by_family = Table("family", "reference-free", "with reference", "localised", "s", "steps", title="Faults")
    for line in family_lines(faults):
        by_family.add_row(*line)
    others = Table("way of looking", "faults found", "healthy alarmed", title="Compared")
    for line in compared(faults, healthy):
        others.add_row(*line)
    return [by_family, others]
