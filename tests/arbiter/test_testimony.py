import json
import subprocess
import sys

import hand_trainer
import numpy as np
import pytest

from mothertongue_arbiter.frame import read_frame
from mothertongue_arbiter.oracle import OutOfTime
from mothertongue_arbiter.testimony import audit_frame


class InProcess:
    """The oracle of the hand-written trainer, without a process."""

    def __init__(self, fault=""):
        self.fault = fault

    def loss(self, seed, steps, only=None):
        question = {"seed": seed, "steps": {} if self.fault == "constant" else steps, "only": only or {}}
        return float(hand_trainer.loss_and_gradients(hand_trainer.moved(question, self.fault))[0])

    def knows_only(self):
        return self.fault != "whole"


def heard(tmp_path, fault="", oracle=None):
    path = tmp_path / "frame.safetensors"
    hand_trainer.write_frame(str(path), fault)
    return audit_frame(read_frame(path), oracle or InProcess())


def answers(certificate):
    return {check.name: check for check in certificate.checks}


def reasons(certificate):
    return {absent.name: absent.reason for absent in certificate.not_run}


@pytest.mark.parametrize(
    ("fault", "verdict"), [("", "PASS"), ("severed", "FAIL"), ("wrong", "FAIL"), ("float32", "INCONCLUSIVE")]
)
def test_a_frame_is_judged_by_its_oracle(tmp_path, fault, verdict):
    assert heard(tmp_path, fault).verdict == verdict


def test_a_row_without_gradient_on_which_the_loss_depends_is_named(tmp_path):
    check = answers(heard(tmp_path, "dead row"))["dead elements"]
    assert check.verdict == "FAIL"
    assert [(one.subject, one.verdict) for one in check.findings] == [("first", "PARTLY-DEAD")]


def test_an_oracle_that_only_moves_whole_tensors_leaves_dead_elements_unasked(tmp_path):
    certificate = heard(tmp_path, "dead row", InProcess("whole"))
    assert "dead elements" not in answers(certificate)
    assert "cannot move parts" in reasons(certificate)["dead elements"]


def test_a_parameter_that_is_not_finite_is_named_and_ends_the_questions(tmp_path):
    certificate = heard(tmp_path, "overflown")
    check = answers(certificate)["finiteness"]
    assert (check.verdict, check.findings[0].subject) == ("FAIL", "gain")
    assert "not finite" in reasons(certificate)["gradient values"]


@pytest.mark.parametrize("fault", ["constant", "lies", "subtracts"])
def test_the_losses_of_an_oracle_that_lies_accuse_no_gradient(tmp_path, fault):
    certificate = heard(tmp_path, "", InProcess(fault))
    assert certificate.verdict == "FAIL"
    assert "gradient values" not in answers(certificate)
    assert "prove nothing" in reasons(certificate)["gradient values"]


def test_a_loss_that_does_not_repeat_is_inconclusive(tmp_path):
    oracle, noise = InProcess(), np.random.default_rng(0)
    exact = oracle.loss
    oracle.loss = lambda seed, steps, only=None: exact(seed, steps, only) + 1e-7 * noise.normal()
    checks = answers(heard(tmp_path, "", oracle))
    assert checks["gradient values"].verdict == "INCONCLUSIVE"
    assert checks["gradient presence"].verdict == "INCONCLUSIVE"


def test_what_the_time_of_the_audit_did_not_allow_is_listed(tmp_path):
    oracle = InProcess()
    answered = []

    def loss(seed, steps, only=None):
        answered.append(seed)
        if len(answered) > 12:
            raise OutOfTime
        return InProcess().loss(seed, steps, only)

    oracle.loss = loss
    certificate = heard(tmp_path, "", oracle)
    assert certificate.verdict == "INCONCLUSIVE"
    assert answers(certificate)["loss of the oracle"].verdict == "PASS"
    assert "--time-limit" in reasons(certificate)["dead elements"]


SPARSE = """
import json, sys
from pathlib import Path
from mothertongue_arbiter.frame import read_frame
from mothertongue_arbiter.testimony import audit_frame

certificate = audit_frame(read_frame(Path(sys.argv[1])))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))  # of this program alone
print(json.dumps([certificate.verdict, int(peak.split()[1])]))
"""
SPARSE_BYTES, MOST_MEMORY_KILOBYTES = 5 << 27, 300_000  # each of its two arrays is larger than that


def test_a_frame_is_read_in_less_memory_than_one_of_its_arrays_takes(tmp_path):
    path, half = tmp_path / "large.safetensors", SPARSE_BYTES // 2
    listed = json.dumps(
        {"version": 1, "loss": 1.0, "tensors": [{"name": "w", "shape": [half // 8], "trainable": True}]}
    )
    header = {"__metadata__": {"mothertongue_frame": listed}}
    for number, kind in enumerate(("param", "grad")):
        offsets = [number * half, (number + 1) * half]
        header[f"{kind}/w"] = {"dtype": "F64", "shape": [half // 8], "data_offsets": offsets}
    text = json.dumps(header).encode()
    with path.open("wb") as file:  # a hole: it takes no room on the disk
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + SPARSE_BYTES)
    done = subprocess.run(
        [sys.executable, "-c", SPARSE, str(path)], capture_output=True, text=True, check=True
    )
    verdict, kilobytes = json.loads(done.stdout)
    assert verdict == "PASS"
    assert kilobytes < MOST_MEMORY_KILOBYTES
