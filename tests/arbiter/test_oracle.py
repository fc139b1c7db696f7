import shlex
import sys
import time
from pathlib import Path

import hand_trainer
import pytest

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.oracle import LossOracle, OutOfTime


def program(text):
    return shlex.join([sys.executable, "-c", text])


def test_it_answers_with_the_loss_of_moved_parameters():
    with LossOracle(f"{sys.executable} {hand_trainer.__file__} oracle") as oracle:
        still = oracle.loss(0, {})
        moved = oracle.loss(0, {"gain": 1e-3})
        assert oracle.loss(0, {}) == still
    assert still == hand_trainer.loss_and_gradients(hand_trainer.parameters())[0]
    assert moved != still


def test_the_process_is_ended_with_the_block():
    with LossOracle(program("import time; time.sleep(600)")) as oracle:
        process = oracle._process
    assert process.poll() is not None


def test_what_the_process_started_ends_with_it():
    child = "import subprocess; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); input()"
    with LossOracle(program(child)) as oracle:
        pid = int(oracle._process.stdout.readline())
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(50):  # the system buries the orphan a moment later
        if not stat.exists() or stat.read_text().rsplit(")", 1)[1].split()[0] == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("it lives on")


def test_a_long_question_to_a_process_that_never_reads_ends_at_the_time_limit():
    command, many = (
        program("import time; time.sleep(600)"),
        {f"layers.{i}.weight": 1e-6 for i in range(20_000)},
    )
    with (
        LossOracle(command, time_limit_seconds=0.3) as oracle,
        pytest.raises(ArbiterError, match="no answer"),
    ):
        oracle.loss(0, many)


def test_the_time_of_the_audit_bounds_an_answer():
    command = program("import time; time.sleep(600)")
    with LossOracle(command, audit_seconds=0.2) as oracle, pytest.raises(OutOfTime):
        oracle.loss(0, {})


def test_a_process_that_closes_its_input_has_ended():
    program_text = "import os, time; os.close(0); time.sleep(600)"
    with LossOracle(program(program_text)) as oracle:
        time.sleep(0.3)
        with pytest.raises(ArbiterError, match="closed its pipe"):
            oracle.loss(0, {})


def test_an_oracle_that_refuses_unknown_questions_cannot_move_a_part():
    answers = 'import sys\nfor line in sys.stdin: print(\'{"error": "unknown: only"}\', flush=True)'
    with LossOracle(program(answers)) as oracle:
        assert not oracle.knows_only()
        with pytest.raises(ArbiterError, match="cannot answer: 'unknown: only'"):
            oracle.loss(0, {})


def test_a_part_of_a_tensor_is_only_asked_of_an_oracle_that_says_it_moved_a_part():
    question = "import sys\nfor line in sys.stdin: print('{\"loss\": 1.5}', flush=True)"
    with LossOracle(program(question)) as oracle:
        assert not oracle.knows_only()
        with pytest.raises(ArbiterError, match="whole tensors"):
            oracle.loss(0, {"w": 1e-4}, {"w": [(0, 3)]})
    with LossOracle(f"{sys.executable} {hand_trainer.__file__} oracle") as oracle:
        assert oracle.knows_only()
        assert oracle.loss(0, {"gain": 1e-3}, {"gain": [(0, 8)]}) == oracle.loss(0, {"gain": 1e-3})
        assert oracle.loss(0, {"gain": 1e-3}, {"gain": [(0, 3)]}) != oracle.loss(0, {"gain": 1e-3})


@pytest.mark.parametrize(
    "answer",
    [
        "[" * 60_000,
        '{"loss": 1%s}' % ("0" * 400),
        "3",
        "[]",
        "{}",
        '{"loss": "much"}',
        '{"loss": true}',
        '{"loss": null}',
        "not json",
        "",
    ],
)
def test_an_answer_that_is_no_loss_is_quoted(answer):
    command = program(f"input(); print({answer!r}, flush=True); input()")
    with LossOracle(command) as oracle, pytest.raises(ArbiterError, match="expected") as failure:
        oracle.loss(0, {})
    assert answer[:60] in str(failure.value)


def test_an_answer_without_end_is_refused():
    command = program("import sys; sys.stdout.write('1' * 200000); sys.stdout.flush(); input()")
    with LossOracle(command) as oracle, pytest.raises(ArbiterError, match="more than 65536 bytes"):
        oracle.loss(0, {})
