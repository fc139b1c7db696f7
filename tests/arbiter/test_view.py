import io
from dataclasses import replace

from rich.console import Console

from mothertongue_arbiter.certificate import Certificate, Check, NotRun, Verdict
from mothertongue_arbiter.view import page, text_page


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


def test_the_cost_is_told_in_training_steps_of_the_run_with_the_work_in_float64_apart():
    timed = replace(certificate_of(Verdict.PASS), seconds=5.0, float64_seconds=3.0, step_seconds=0.125)
    line = "Cost: 2.0 s = 16 training steps of this run, 0.125 s each, and 3.0 s in float64"
    assert line in text_page(timed).splitlines()
    assert "Cost: 2.0 s and 3.0 s in float64" in text_page(replace(timed, step_seconds=None)).splitlines()
    assert "Cost" not in text_page(certificate_of(Verdict.PASS))  # of a frame, which takes no step


def test_a_narrow_terminal_gets_the_evidence_under_the_name():
    console = Console(width=48, record=True, file=io.StringIO())
    console.print(page(certificate_of(Verdict.PASS, Verdict.FAIL), columns=48))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert lines[:2] == ["FAIL  check 1  0.0 s", "  evidence 1. Likely cause: a cause"]
    assert max(map(len, lines)) <= 48


def test_the_text_view_states_what_the_audit_stood_on():
    certificate = replace(
        certificate_of(Verdict.PASS), commit="abc", dirty=True, seeds={"directions": 3}, scope={"recipe": "x"}
    )
    text = text_page(certificate)
    assert text.isascii()
    for said in (
        "Commit: abc and changes that are in no commit",
        "Parameters: 6, float32",
        "Seeds: directions 3",
        f"Scope: {certificate.scope_sha256} over 1 parts",
        "Mutation score: ",
    ):
        assert said in text
    assert not any(line.endswith(" ") for line in text.splitlines())
