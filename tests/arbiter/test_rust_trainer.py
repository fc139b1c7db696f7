"""The example in Rust: built with what its language ships, audited, and broken."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from mothertongue_arbiter.cli import audit

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "rust-trainer"
# What each fault makes wrong, nearest the loss first, and the check that says so.
FAULTS = {
    "missing-factor": ("gradient values", ["hidden.bias", "hidden.weight", "embedding"]),
    "dropped-bias": ("gradient presence", ["output.bias"]),
    "stale": ("gradient values", ["embedding"]),
    "overwritten": ("gradient values", ["embedding"]),
    "unwritten-rows": ("dead elements", ["output.weight"]),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory):
    if shutil.which("rustc") is None:
        pytest.skip("no rustc on this machine")
    program = tmp_path_factory.mktemp("rust") / "trainer"
    command = ["rustc", "-O", "-D", "warnings", str(EXAMPLE / "trainer.rs"), "-o", str(program)]
    subprocess.run(command, check=True)
    return program


@pytest.fixture
def certified(trainer, tmp_path):
    def certify(*options):
        frame = tmp_path / "step.safetensors"
        subprocess.run([trainer, "frame", frame, *options], check=True, capture_output=True)
        steps = [one for one in options if one == "--steps" or one.isdigit()]
        oracle = shlex.join([str(trainer), "oracle", *steps])
        result = CliRunner().invoke(audit, [str(frame), "--oracle", oracle, "--json"])
        return result.exit_code, json.loads(result.stdout)

    return certify


def test_its_signs_are_those_of_the_specification(trainer):
    text = (ROOT / "docs" / "frame-format.md").read_text(encoding="utf-8")
    vectors = re.findall(r"^\| (\d+) \| `(.+?)` \| `([+-]{16})` \|$", text, re.M)
    assert len(vectors) == 3
    for seed, name, stated in vectors:
        assert subprocess.check_output([trainer, "signs", seed, name, "16"], text=True).strip() == stated


@pytest.mark.parametrize("options", [[], ["--steps", "60"]])
def test_the_sound_trainer_passes_every_check_of_a_frame(certified, options):
    exit_code, certificate = certified(*options)
    assert exit_code == 0, certificate
    assert {check["verdict"] for check in certificate["checks"]} == {"PASS"}
    assert len(certificate["checks"]) == 6


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_fails_with_the_tensor_named(certified, fault):
    exit_code, certificate = certified("--broken", fault)
    assert exit_code == 1
    name, tensors = FAULTS[fault]
    check = next(one for one in certificate["checks"] if one["name"] == name)
    assert check["verdict"] == "FAIL"
    assert [finding["subject"] for finding in check["findings"]] == tensors


def test_its_readme_lists_every_fault_with_the_loss_that_hides_it(trainer):
    rows = dict(
        re.findall(r"^\| `([\w-]+)` \| .+? \| ([\d.]+) \|", (EXAMPLE / "README.md").read_text("utf-8"), re.M)
    )
    assert rows.keys() == FAULTS.keys()
    for fault, stated in rows.items():
        command = [trainer, "train", "--steps", "300", "--broken", fault]
        loss = float(subprocess.check_output(command, text=True, stderr=subprocess.DEVNULL).split()[1])
        assert loss == pytest.approx(float(stated), abs=0.006)


def test_a_question_that_it_cannot_answer_is_answered_with_the_reason(trainer):
    questions = '{"seed": 1, "steps": {"x": 1}}\n{"seed": 1\n'
    done = subprocess.run([trainer, "oracle"], input=questions, capture_output=True, text=True, check=True)
    errors = [json.loads(line)["error"] for line in done.stdout.splitlines()]
    assert errors == ["no tensor named x", "the question is no JSON"]
