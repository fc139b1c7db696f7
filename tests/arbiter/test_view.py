import io
from dataclasses import replace

from rich.console import Console

from mothertongue_arbiter.certificate import Certificate, Check, NotRun, Verdict
from mothertongue_arbiter.view import page


def certificate_of(*verdicts):
    checks = tuple(
        Check(name=f"check {i}", verdict=verdict, evidence=f"evidence {i}", cause="a cause")
        for i, verdict in enumerate(verdicts)
    )
    not_run = (NotRun(name="absent", reason="the run has no `x`"),)
    return Certificate(
        step=0, checks=checks, not_run=not_run, shapes={"w": (2, 3)}, dtypes={"w": "float32"}, seconds=1.0
    )


def test_the_page_shows_the_worst_first():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(page(certificate_of(Verdict.PASS, Verdict.INCONCLUSIVE, Verdict.FAIL)))
    lines = console.export_text().splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["FAIL", "INCONCLUSIVE", "PASS"]
    assert "Likely cause: a cause" in lines[0]
    assert "absent" in lines[3]
    assert lines[-1].startswith("FAIL at step 0: 3 checks of 1 tensors")


def test_notes_of_the_run_stand_just_before_the_verdict():
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(page(replace(certificate_of(Verdict.PASS), notes=("the rows are random",))))
    assert console.export_text().splitlines()[-2] == "Note: the rows are random"
