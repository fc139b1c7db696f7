"""The certificate as one page of text, worst first."""

from __future__ import annotations

import io
import math

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from mothertongue_arbiter.certificate import Certificate, Check, Verdict, mutation_score

STYLES = {Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "yellow", Verdict.PASS: "green"}
TABLE_COLUMNS = 90  # in a narrower terminal the evidence stands under the name of the check
PAGE_COLUMNS = 118


def page(certificate: Certificate, *, columns: int = PAGE_COLUMNS) -> RenderableType:
    """Return the page: a table of the checks, then what was not checked, the notes, the verdict."""
    rows = [
        (
            Text(check.verdict, style=STYLES[check.verdict]),
            check.name,
            Text(_line(check)),
            f"{check.seconds:.1f} s",
        )
        for check in sorted(certificate.checks, key=lambda check: list(STYLES).index(check.verdict))
    ]
    rows += [
        (Text("not run", style="dim"), absent.name, Text(absent.reason, style="dim"), "")
        for absent in certificate.not_run
    ]
    notes = [Text(f"Note: {note}") for note in certificate.notes]
    listed = _table(rows) if columns >= TABLE_COLUMNS else _list(rows)
    cost = [Text(_cost(certificate))] if certificate.float64_seconds else []
    return Group(listed, Text(), *cost, *notes, _summary(certificate))


Row = tuple[Text, str, Text, str]


def _table(rows: list[Row]) -> RenderableType:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _list(rows: list[Row]) -> RenderableType:
    parts: list[RenderableType] = []
    for verdict, name, evidence, seconds in rows:
        parts.append(Text.assemble(verdict, f"  {name}", f"  {seconds}" if seconds else ""))
        parts.append(Padding(evidence, (0, 0, 0, 2), expand=False))
    return Group(*parts)


def text_page(certificate: Certificate) -> str:
    """Return the page as plain text, with the facts that a reader of the file has no other place for."""
    console = Console(file=io.StringIO(), width=PAGE_COLUMNS, color_system=None)
    with console.capture() as captured:
        console.print(page(certificate))
        console.print()
        for name, fact in _facts(certificate).items():
            console.print(Text(f"{name}: {fact}"), soft_wrap=True)
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def _facts(certificate: Certificate) -> dict[str, str]:
    dirty = {True: " and changes that are in no commit", False: "", None: ""}[certificate.dirty]
    count = sum(math.prod(shape) for shape in certificate.shapes.values())
    facts = {
        "Commit": f"{certificate.commit or 'none'}{dirty}",
        "Parameters": f"{count:,}, {', '.join(sorted(set(certificate.dtypes.values()))) or 'none'}",
        "Device": certificate.device,
        "Seeds": ", ".join(f"{name} {seed}" for name, seed in certificate.seeds.items()),
        "Versions": ", ".join(f"{name} {version}" for name, version in certificate.versions.items()),
        "Scope": f"{certificate.scope_sha256} over {len(certificate.scope)} parts"
        if certificate.scope
        else "",
        "Mutation score": mutation_score(),
    }
    return {name: fact for name, fact in facts.items() if fact}


def _cost(certificate: Certificate) -> str:
    wide, steps = certificate.float64_seconds, certificate.training_steps
    told = f"Cost: {certificate.seconds - wide:.1f} s"
    if steps is not None:
        told += f" = {steps:.0f} training steps of this run, {certificate.step_seconds:.3g} s each,"
    return f"{told} and {wide:.1f} s in float64"


def _line(check: Check) -> str:
    return f"{check.evidence}. Likely cause: {check.cause}" if check.cause else check.evidence


def _summary(certificate: Certificate) -> Text:
    verdict = certificate.verdict
    return Text.assemble(
        (str(verdict), STYLES[verdict]),
        f" at step {certificate.step}: {len(certificate.checks)} checks of {len(certificate.shapes)} tensors "
        f"in {certificate.seconds:.1f} s, {len(certificate.not_run)} not run",
    )
