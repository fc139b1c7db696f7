import json
import subprocess
import sys
import time
from pathlib import Path

import hand_trainer
import pytest
from click.testing import CliRunner

from mothertongue_arbiter.cli import audit

TRAINER = Path(hand_trainer.__file__)
ORACLE = f"{sys.executable} {TRAINER} oracle"


@pytest.fixture
def invoke(tmp_path):
    return lambda *arguments: CliRunner().invoke(audit, [str(argument) for argument in arguments])


@pytest.fixture
def frame(tmp_path):
    def write(fault=""):
        hand_trainer.write_frame(str(tmp_path / "frame.safetensors"), fault)
        return tmp_path / "frame.safetensors"

    return write


def verdicts(result):
    return {check["name"]: check["verdict"] for check in json.loads(result.stdout)["checks"]}


def test_a_trainer_in_another_language_is_certified(invoke, frame):
    result = invoke(frame(), "--oracle", ORACLE, "--json")
    assert result.exit_code == 0, result.output
    certificate = json.loads(result.stdout)
    assert certificate["verdict"] == "PASS"
    assert set(verdicts(result).values()) == {"PASS"}
    presence = next(check for check in certificate["checks"] if check["name"] == "gradient presence")
    assert [finding["subject"] for finding in presence["findings"]] == ["unused"]
    assert presence["findings"][0]["verdict"] == "DEAD-HERE"


@pytest.mark.parametrize(
    ("fault", "check", "named"),
    [
        ("severed", "gradient presence", "gain"),
        ("wrong", "gradient values", "first"),
        ("nonfinite", "finiteness", "second"),
    ],
)
def test_its_broken_backward_fails(invoke, frame, fault, check, named):
    result = invoke(frame(fault), "--oracle", ORACLE, "--json")
    assert result.exit_code == 1
    failed = next(one for one in json.loads(result.stdout)["checks"] if one["name"] == check)
    assert failed["verdict"] == "FAIL"
    assert failed["findings"][0]["subject"] == named


@pytest.mark.parametrize(("frame_fault", "oracle_fault"), [("float32", ""), ("", "float32")])
def test_float32_certifies_nothing(invoke, frame, frame_fault, oracle_fault):
    result = invoke(frame(frame_fault), "--oracle", f"{ORACLE} {oracle_fault}", "--json")
    assert result.exit_code == 3
    assert verdicts(result)["gradient values"] == "INCONCLUSIVE"


def test_without_an_oracle_only_finiteness_is_judged(invoke, frame):
    result = invoke(frame(), "--json")
    assert list(verdicts(result)) == ["finiteness"]
    reasons = {one["name"]: one["reason"] for one in json.loads(result.stdout)["not_run"]}
    assert "--oracle" in reasons["gradient values"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("dies", "ended without an answer (exit code 7)"),
        ("'dies later'", "ended without an answer (exit code 7)"),
        ("hangs", "no answer within 1 s"),
        ("garbage", "'step 0, loss 1.09' answered"),
        ("talks", "'loading weights"),
        ("twice", "without a question"),
        ("complains", "no tensor 'gain' here"),
    ],
)
def test_an_oracle_that_fails_is_answered_in_one_line(invoke, frame, fault, said):
    begin = time.monotonic()
    result = invoke(frame(), "--oracle", f"{ORACLE} {fault}", "--oracle-seconds", "1")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize(
    ("fault", "check", "exit_code"),
    [("'other batch'", "FAIL", 1), ("NaN", "FAIL", 1), ("Infinity", "FAIL", 1), ("noisy", "INCONCLUSIVE", 3)],
)
def test_an_oracle_of_another_loss_fails_and_a_noisy_one_certifies_nothing(
    invoke, frame, fault, check, exit_code
):
    result = invoke(frame(), "--oracle", f"{ORACLE} {fault}", "--json")
    assert result.exit_code == exit_code
    assert check in verdicts(result).values()


def test_an_oracle_that_cannot_be_started_is_named(invoke, frame):
    result = invoke(frame(), "--oracle", "no-such-program --oracle")
    assert result.exit_code == 2
    assert "cannot be started" in result.stderr


def test_an_oracle_that_stands_elsewhere_fails(invoke, frame):
    result = invoke(frame(), "--oracle", f"{ORACLE} lies", "--json")
    assert result.exit_code == 1
    assert verdicts(result)["loss of the oracle"] == "FAIL"


def write_run(tmp_path, body="return ZooRun()"):
    path = tmp_path / "mine.py"
    zoo = str(TRAINER.parent)
    text = f"import sys\nsys.path.insert(0, {zoo!r})\nfrom zoo import ZooRun\n\n\ndef make():\n    {body}\n"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_function_of_the_user_is_audited_and_the_certificate_written(invoke, tmp_path):
    out = tmp_path / "certificate.json"
    result = invoke(f"{write_run(tmp_path)}:make", "--run", "--out", out)
    assert result.exit_code == 0, result.output
    assert json.loads(out.read_text(encoding="utf-8"))["verdict"] == "PASS"
    assert "PASS" in result.stdout


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return 3", "int returned"),
        ("raise ValueError('no data here')", "ValueError: no data here"),
        ("sys.exit(4)", "SystemExit"),
    ],
)
def test_a_function_that_gives_no_run_is_answered_in_one_line(invoke, tmp_path, body, said):
    result = invoke(f"{write_run(tmp_path, body)}:make", "--run")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("absent.toml", "no such file"),
        ("absent.safetensors", "no such frame"),
        ("notes.txt", "expected"),
    ],
)
def test_a_target_that_is_nothing_is_answered_in_one_line(invoke, tmp_path, target, said):
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    result = invoke(tmp_path / target)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_recipe_without_the_trainer_is_answered_with_its_install_line(invoke, tmp_path, monkeypatch):
    monkeypatch.setattr("mothertongue_arbiter.target.entry_points", lambda **which: ())
    (tmp_path / "r.toml").write_text("", encoding="utf-8")
    result = invoke(tmp_path / "r.toml")
    assert result.exit_code == 2
    assert "pip install mothertongue-trainer" in result.stderr


def test_the_framework_free_part_imports_no_framework():
    program = (
        "import sys, mothertongue_arbiter, mothertongue_arbiter.testimony, mothertongue_arbiter.target, "
        "mothertongue_arbiter.cli; print([m for m in ('torch', 'jax', 'mothertongue') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_options_and_notes_of_a_run_reach_its_certificate(invoke, tmp_path):
    body = "run = ZooRun(); run.options = Options(seed=7); run.notes = ('invented rows',); return run"
    path = write_run(tmp_path, body)
    text = path.read_text(encoding="utf-8")
    path.write_text(f"from mothertongue_arbiter.audit import Options\n{text}", encoding="utf-8")
    certificate = json.loads(invoke(f"{path}:make", "--run", "--json").stdout)
    assert certificate["seeds"] == {"directions": 7, "random numbers": 7}
    assert certificate["notes"] == ["invented rows"]


HANGS = """
import sys, time
sys.path[:0] = {zoo!r}
from zoo import ZooRun


def make():
    run, calls = ZooRun(), []
    loss = run.loss

    def hangs(model, batch):
        calls.append(batch)
        if len(calls) > 25:
            time.sleep(600)
        return loss(model, batch)

    run.loss = hangs
    return run
"""


def test_a_loss_that_hangs_is_inconclusive_and_what_was_answered_is_written(tmp_path):
    path, out = tmp_path / "mine.py", tmp_path / "certificate.json"
    path.write_text(
        HANGS.format(zoo=[str(TRAINER.parent), str(TRAINER.parents[2] / "benchmarks")]), encoding="utf-8"
    )
    command = [sys.executable, "-c", "from mothertongue_arbiter.cli import audit; audit()"]
    command += ["--run", f"{path}:make", "--time-limit", "8", "--out", str(out), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 3, done.stderr
    certificate = json.loads(done.stdout)
    assert "--time-limit" in certificate["checks"][-1]["evidence"]
    assert json.loads(out.read_text(encoding="utf-8")) == certificate
    assert out.with_suffix(".txt").exists()


def test_a_certificate_is_compared_with_the_run_as_it_is_now(invoke, tmp_path):
    out, path = tmp_path / "certificate.json", write_run(tmp_path)
    target = f"{path}:make"
    assert invoke(target, "--run", "--out", out).exit_code == 0
    fresh = invoke(target, "--run", "--check", out)
    assert fresh.exit_code == 0
    assert "holds, PASS at step 0" in fresh.stdout
    path.write_text(path.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    stale = invoke(target, "--run", "--check", out)
    assert stale.exit_code == 1
    assert "stale (code of mine); audit again" in stale.stdout
    told = json.loads(invoke(target, "--run", "--check", out, "--json").stdout)
    assert told == {"verdict": "PASS", "stale": True, "changed": ["code of mine"]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["x", "--run", "--hf"], "one or the other"),
        (["x.toml", "--text", "t"], "only with --hf"),
        (["x.toml", "--oracle", "c"], "only with a frame"),
        (["x.safetensors", "--check", "c.json"], "audit it again"),
        (["x.toml", "--time-limit", "0"], "more than 0 seconds"),
        (["x.toml", "--out", "c.txt"], "needs a .json file"),
        (["x.toml", "--check", "absent.json"], "absent.json: No such file"),
        (["absent/model", "--hf"], "nothing is downloaded"),
    ],
)
def test_options_that_contradict_each_other_are_answered_in_one_line(invoke, options, said):
    result = invoke(*options)
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_certificate_that_cannot_be_written_is_said(invoke, frame, tmp_path):
    (tmp_path / "file").touch()
    result = invoke(frame(), "--out", tmp_path / "file" / "c.json")
    assert result.exit_code == 2
    assert "the certificate was not written" in result.stderr


def test_the_oracle_ends_with_an_audit_that_is_terminated(tmp_path, frame):
    command = [sys.executable, "-c", "from mothertongue_arbiter.cli import audit; audit()", str(frame())]
    process = subprocess.Popen([*command, "--oracle", f"{ORACLE} hangs"], stderr=subprocess.DEVNULL)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    for _ in range(100):
        found = children.read_text().split()
        if found:
            break
        time.sleep(0.1)
    time.sleep(0.3)
    process.terminate()
    assert process.wait(10) == 143
    assert not Path(f"/proc/{found[0]}").exists()
