import shlex
import sys

import hand_trainer
import pytest

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.oracle import LossOracle


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


@pytest.mark.parametrize(
    "answer", ["3", "[]", "{}", '{"loss": "much"}', '{"loss": true}', '{"loss": null}', "not json", ""]
)
def test_an_answer_that_is_no_loss_is_quoted(answer):
    command = program(f"input(); print({answer!r}, flush=True); input()")
    with LossOracle(command) as oracle, pytest.raises(ArbiterError, match="expected") as failure:
        oracle.loss(0, {})
    assert answer in str(failure.value)


def test_an_answer_without_end_is_refused():
    command = program("import sys; sys.stdout.write('1' * 200000); sys.stdout.flush(); input()")
    with LossOracle(command) as oracle, pytest.raises(ArbiterError, match="more than 65536 bytes"):
        oracle.loss(0, {})
