from pathlib import Path

import pytest

from mothertongue_trainer.display import TrainingDisplay, table_lines
from mothertongue_trainer.events import (
    AuditCheckBegins,
    Audited,
    CertificateStale,
    CheckpointSaved,
    Event,
    MonitorWarned,
    RateMeasured,
    RunOpened,
    StepDone,
)
from mothertongue_trainer.metrics import StepMetrics
from mothertongue_trainer.model import Qwen3
from mothertongue_trainer.optimizer import parameter_table
from mothertongue_trainer.recipe import read_recipe

RECIPE = read_recipe(Path(__file__).parents[2] / "recipes" / "nano.toml")
TABLE = parameter_table(Qwen3(RECIPE.model, RECIPE.tokenizer.vocabulary), RECIPE.optimizer)
EVENTS: tuple[Event, ...] = (
    CertificateStale(changed=("the arbiter", "code of a", "code of b", "data")),
    RunOpened(
        parameters=TABLE, parameter_count=1_312_128, device="CPU, 2 threads", compute_dtype="float32",
        wanted_dtype="bfloat16", resumed_step=0, steps=3466, tokens=7_098_368,
    ),
    AuditCheckBegins(name="labels"),
    Audited(step=0, verdict="PASS", checks=17, not_run=2, certificate=Path("audit/certificate.json")),
    RateMeasured(tokens_per_second=18_000.0, minutes_left=6.5, flops_utilisation=None),
    StepDone(step=1, loss=8.3),
    StepMetrics(step=1, loss=8.3, lr=0.1, tokens=2048, tokens_per_second=1.0, grad_norm=1.0, seconds=1.0),
    MonitorWarned(step=1, lines=("FROZEN: norm (gradient norm 1). Likely cause: x",)),
    CheckpointSaved(folder=Path("runs/nano/checkpoints/step-000001")),
)  # fmt: skip


def test_a_run_is_told_in_a_few_lines_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay() as display:
        for event in EVENTS:
            display(event)
    out, err = capsys.readouterr()
    assert out == ""
    assert "1.31 M parameters, 7,098,368 tokens in 3,466 steps, float32 on CPU, 2 threads" in err
    assert "only emulate bfloat16" in err
    assert "The certificate is stale (the arbiter, code of a, code of b and 1 more): auditing again." in err
    assert "Audit: PASS, 17 checks, 2 not run (audit/certificate.json)" in err
    assert "About 6.5 minutes at 18,000 tokens/s (share of the device's peak: n/a)" in err
    assert "WARNING: step 1: FROZEN: norm (gradient norm 1). Likely cause: x" in err
    assert len(err.splitlines()) < 26


def test_a_quiet_display_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay(quiet=True) as display:
        for event in EVENTS:
            display(event)
    assert capsys.readouterr() == ("", "")


def test_the_table_has_every_parameter_once_and_layers_together() -> None:
    lines = table_lines(TABLE)
    counts = [int(line.split()[4].replace(",", "")) for line in lines[1:]]
    assert sum(counts) == 1_312_128
    assert len(lines) == 14
    assert any("q_proj" in line and "4 x 128x128" in line and "matrix    muon" in line for line in lines)
    assert [row.group for row in TABLE if row.group not in "\n".join(lines)] == []


def test_an_inconclusive_audit_is_said_loudly(capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingDisplay() as display:
        for verdict in ("PASS", "INCONCLUSIVE"):
            display(Audited(step=0, verdict=verdict, checks=17, not_run=2, certificate=Path("c.json")))
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("WARNING: the audit could not answer") for line in lines].count(True) == 1
    assert lines.index(next(line for line in lines if "WARNING" in line)) == len(lines) - 1
