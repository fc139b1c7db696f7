import hand_trainer
import pytest
from test_testimony import InProcess, answers, heard


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("subtracts", "every step were subtracted"),
        ("ones", "every sign were +1"),
        ("from 1", "counted from 1"),
        ("i for i + 1", "i stood for i + 1"),
        ("columns", "column-major"),
        ("nameless", "not hashed"),
        ("constant", "whatever is moved"),
    ],
)
def test_an_oracle_that_moves_otherwise_than_asked_is_told_how(tmp_path, fault, said):
    check = answers(heard(tmp_path, "", InProcess(fault)))["answers of the oracle"]
    assert check.verdict == "FAIL"
    assert said in check.evidence


def test_weights_that_are_not_put_back_are_noticed(tmp_path):
    oracle, drift = InProcess(), [0.0]
    exact = oracle.loss

    def forgets(seed, steps, only=None):
        drift[0] += 1e-9 if steps else 0.0
        return exact(seed, steps, only) + drift[0]

    oracle.loss = forgets
    check = answers(heard(tmp_path, "", oracle))["answers of the oracle"]
    assert check.verdict == "FAIL"
    assert "not put back" in check.cause


@pytest.mark.parametrize("fault", ["severed", "wrong", "dead row"])
def test_a_wrong_gradient_is_not_blamed_on_the_oracle(tmp_path, fault):
    checks = answers(heard(tmp_path, fault))
    assert checks["answers of the oracle"].verdict == "PASS"
    assert {checks[name].verdict for name in checks} == {"PASS", "FAIL"}


def test_without_any_gradient_nothing_is_held_against_the_oracle(tmp_path, monkeypatch):
    p = hand_trainer.parameters()
    loss, _ = hand_trainer.loss_and_gradients(p)
    monkeypatch.setattr(hand_trainer, "loss_and_gradients", lambda p: (loss, {}))
    check = answers(heard(tmp_path))["answers of the oracle"]
    assert check.verdict == "INCONCLUSIVE"
