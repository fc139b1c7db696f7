import time

import torch

from mothertongue_arbiter.torch.run import clock
from mothertongue_arbiter.torch.run.clock import seconds_of


def test_an_action_is_timed():
    assert 0.02 <= seconds_of(lambda: time.sleep(0.02), torch.device("cpu")) < 0.5


def test_what_other_processes_took_does_not_count(monkeypatch, tmp_path):
    said = tmp_path / "schedstat"
    said.write_text("0 1000000 1")
    monkeypatch.setattr(clock, "SCHEDULER", said)

    def interrupted():
        time.sleep(0.1)
        said.write_text("0 91000000 2")  # 90 ms of waiting

    assert 0.01 <= seconds_of(interrupted, torch.device("cpu")) < 0.09


def test_a_system_that_does_not_say_is_believed(monkeypatch, tmp_path):
    monkeypatch.setattr(clock, "SCHEDULER", tmp_path / "none")
    assert 0.02 <= seconds_of(lambda: time.sleep(0.02), torch.device("cpu")) < 0.5
