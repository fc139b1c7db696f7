import os

import pytest

from mothertongue_trainer.waiting import SPINS, share_the_machine


def test_threads_sleep_early_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.delenv(name, raising=False)
    share_the_machine()
    assert os.environ["GOMP_SPINCOUNT"] == str(SPINS)
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    share_the_machine()
    assert os.environ["GOMP_SPINCOUNT"] == "7"


def test_a_wait_policy_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    share_the_machine()
    assert "GOMP_SPINCOUNT" not in os.environ
