import json

import pytest

from mothertongue_arbiter.certificate import SCORE, Certificate, Check, NotRun, Verdict


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
    assert written["not_run"] == [{"name": "absent", "reason": "the run has no `x`"}]
    assert {"shapes", "dtypes", "seeds", "device", "versions", "commit", "mutation_score"} <= written.keys()
    assert written["notes"] == []
    assert [file.name for file in path.parent.iterdir()] == ["certificate.json"]


def test_the_certificate_states_the_score_that_the_zoo_has():
    from faults import FAULTS
    from healthy import HEALTHY

    assert SCORE["faults"] == SCORE["caught"] == len(FAULTS)
    assert SCORE["healthy"] == len(HEALTHY)
    assert SCORE["alarms"] == 0


def test_a_write_that_fails_leaves_the_old_certificate(tmp_path, monkeypatch):
    path = tmp_path / "certificate.json"
    certificate_of(Verdict.PASS).write(path)
    monkeypatch.setattr(
        "os.fsync", lambda file: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(OSError, match="No space"):
        certificate_of(Verdict.FAIL).write(path)
    assert json.loads(path.read_text(encoding="utf-8"))["verdict"] == "PASS"
    assert [file.name for file in tmp_path.iterdir()] == ["certificate.json"]
