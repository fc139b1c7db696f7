"""The certificate as one page of text, worst first."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mothertongue_arbiter.certificate import Certificate, Check, Verdict

STYLES = {Verdict.FAIL: "bold red", Verdict.INCONCLUSIVE: "yellow", Verdict.PASS: "green"}


def page(certificate: Certificate) -> RenderableType:
    """Return the page: a table of the checks, then what was not checked, the notes, the verdict."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(justify="right", no_wrap=True)
    for check in sorted(certificate.checks, key=lambda check: list(STYLES).index(check.verdict)):
        verdict = Text(check.verdict, style=STYLES[check.verdict])
        table.add_row(verdict, check.name, Text(_line(check)), f"{check.seconds:.1f} s")
    for absent in certificate.not_run:
        table.add_row(Text("not run", style="dim"), absent.name, Text(absent.reason, style="dim"), "")
    notes = [Text(f"Note: {note}") for note in certificate.notes]
    return Group(table, Text(), *notes, _summary(certificate))


def _line(check: Check) -> str:
    return f"{check.evidence}. Likely cause: {check.cause}" if check.cause else check.evidence


def _summary(certificate: Certificate) -> Text:
    verdict = certificate.verdict
    return Text.assemble(
        (str(verdict), STYLES[verdict]),
        f" at step {certificate.step}: {len(certificate.checks)} checks of {len(certificate.shapes)} tensors "
        f"in {certificate.seconds:.1f} s, {len(certificate.not_run)} not run",
    )
