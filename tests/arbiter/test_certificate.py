import json
from dataclasses import replace
from importlib.resources import files

import pytest

from mothertongue_arbiter.certificate import (
    SCORE_FILE,
    Certificate,
    Check,
    Finding,
    NotRun,
    TensorVerdict,
    Verdict,
    mutation_score,
)
from mothertongue_arbiter.errors import ArbiterError


def certificate_of(*verdicts):
    checks = tuple(
        Check(name=f"check {i}", verdict=verdict, evidence=f"evidence {i}", cause="a cause")
        for i, verdict in enumerate(verdicts)
    )
    not_run = (NotRun(name="absent", reason="the run has no `x`"),)
    return Certificate(
        step=0, checks=checks, not_run=not_run, shapes={"w": (2, 3)}, dtypes={"w": "float32"}, seconds=1.0
    )


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        ("PASS PASS", "PASS"),
        ("PASS FAIL INCONCLUSIVE", "FAIL"),
        ("INCONCLUSIVE PASS", "INCONCLUSIVE"),
        ("", "INCONCLUSIVE"),
    ],
)
def test_the_worst_check_decides(verdicts, expected):
    assert certificate_of(*map(Verdict, verdicts.split())).verdict == expected


def test_the_certificate_file_has_the_keys_that_others_read(tmp_path):
    path = tmp_path / "audit" / "certificate.json"
    certificate_of(Verdict.PASS).write(path)
    written = json.loads(path.read_text(encoding="utf-8"))
    assert written["verdict"] == "PASS"
    assert {"name", "verdict", "seconds", "evidence"} <= written["checks"][0].keys()
    assert written["not_run"] == [{"name": "absent", "reason": "the run has no `x`", "seconds": 0.0}]
    assert {"shapes", "dtypes", "seeds", "device", "versions", "commit", "mutation_score"} <= written.keys()
    assert written["notes"] == []
    assert sorted(file.name for file in path.parent.iterdir()) == ["certificate.json", "certificate.txt"]
    assert path.with_suffix(".txt").read_text(encoding="utf-8").startswith("PASS     check 0")


def test_the_cost_in_training_steps_is_written_and_read_again(tmp_path):
    timed = replace(certificate_of(Verdict.PASS), seconds=5.0, float64_seconds=3.0, step_seconds=0.125)
    timed.write(tmp_path / "certificate.json")
    assert json.loads((tmp_path / "certificate.json").read_text(encoding="utf-8"))["training_steps"] == 16.0
    assert Certificate.read(tmp_path / "certificate.json").training_steps == 16.0
    assert certificate_of(Verdict.PASS).training_steps is None


def test_the_certificate_states_the_score_of_the_shipped_file():
    from faults.zoo import FAULTS, HEALTHY

    score = json.loads(files("mothertongue_arbiter").joinpath(SCORE_FILE).read_text(encoding="utf-8"))
    assert score["caught"] <= score["faults"]
    assert score["faults"] == len(FAULTS)  # `make bench-arbiter` counts again
    assert score["healthy"] >= len(HEALTHY)
    assert f"{score['caught']} of {score['faults']} injected faults" in mutation_score()
    assert f"{score['alarms']} of {score['healthy']} healthy runs" in mutation_score()


def test_what_is_read_is_what_was_written(tmp_path):
    path = tmp_path / "certificate.json"
    finding = Finding(subject="w", verdict=TensorVerdict.WRONG, detail="off")
    whole = replace(
        certificate_of(Verdict.PASS, Verdict.FAIL), scope={"code": "ab"}, notes=("n",), dirty=True
    )
    whole = replace(whole, checks=(replace(whole.checks[0], findings=(finding,)), *whole.checks[1:]))
    whole.write(path)
    assert Certificate.read(path) == whole


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"checks": [{}]}', '{"checks": 3, "not_run": [], "shapes": {}}']
)
def test_what_is_no_certificate_is_refused_in_one_line(tmp_path, text):
    (tmp_path / "c.json").write_text(text, encoding="utf-8")
    for path, said in ((tmp_path / "c.json", "no certificate"), (tmp_path / "absent.json", "No such file")):
        with pytest.raises(ArbiterError, match=said) as failure:
            Certificate.read(path)
        assert "\n" not in str(failure.value)


def test_a_certificate_names_what_changed_since():
    certificate = replace(
        certificate_of(Verdict.PASS), scope={"recipe": "1", "code of model": "2", "gone": "3"}
    )
    assert certificate.staleness(dict(certificate.scope)) == ()
    now = {"recipe": "1", "code of model": "9", "data": "4"}
    assert certificate.staleness(now) == ("code of model", "data", "gone")
    assert certificate.scope_sha256 != replace(certificate, scope=now).scope_sha256


def test_a_certificate_of_an_older_version_is_stale():
    assert certificate_of(Verdict.PASS).staleness({"recipe": "1"}) == ("it does not say what it depends on",)


def test_a_write_that_fails_leaves_the_old_certificate(tmp_path, monkeypatch):
    path = tmp_path / "certificate.json"
    certificate_of(Verdict.PASS).write(path)
    monkeypatch.setattr(
        "os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        certificate_of(Verdict.FAIL).write(path)
    assert json.loads(path.read_text(encoding="utf-8"))["verdict"] == "PASS"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["certificate.json", "certificate.txt"]
    assert "FAIL" not in path.with_suffix(".txt").read_text(encoding="utf-8")
