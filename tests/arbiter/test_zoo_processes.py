"""Questions that hang, crash or exit cost only themselves."""

import math
import multiprocessing
import os
import sys
import time

from faults.processes import Failed, answered


def test_every_question_has_its_answer():
    assert dict(answered(math.sqrt, [4.0, 9.0, 16.0], jobs=2, limit_seconds=60)) == {4: 2, 9: 3, 16: 4}


def test_an_error_is_the_answer_of_its_question_only():
    answers = dict(answered(math.sqrt, [-1.0, 9.0], jobs=2, limit_seconds=60))
    assert answers[9.0] == 3.0
    assert answers[-1.0].reason.startswith("ValueError: ")


def test_a_hang_ends_at_its_limit_and_the_others_go_on():
    began = time.monotonic()
    answers = dict(answered(time.sleep, [600, 0.0], jobs=2, limit_seconds=8))
    assert answers == {0.0: None, 600: Failed(reason="no answer within 8 s")}
    assert time.monotonic() - began < 60


def test_an_exit_names_its_code():
    assert dict(answered(os._exit, [3], jobs=1, limit_seconds=60)) == {
        3: Failed(reason="the process ended without an answer, exit code 3")
    }


def test_a_system_exit_is_no_answer():
    ((_, answer),) = answered(sys.exit, [0], jobs=1, limit_seconds=60)
    assert answer == Failed(reason="the process ended without an answer, exit code 0")


def test_who_stops_asking_leaves_no_process_behind():
    answers = answered(time.sleep, [0.0, 600.0], jobs=2, limit_seconds=600)
    assert next(answers) == (0.0, None)
    children = multiprocessing.active_children()
    answers.close()
    assert children
    assert not multiprocessing.active_children()
