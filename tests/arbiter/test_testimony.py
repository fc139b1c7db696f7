import hand_trainer
import numpy as np
import pytest

from mothertongue_arbiter.frame import read_frame
from mothertongue_arbiter.testimony import audit_frame


class InProcess:
    """The oracle of the hand-written trainer, without a process."""

    def loss(self, seed, steps):
        p = hand_trainer.parameters()
        for name, step in steps.items():
            p[name] = p[name] + step * hand_trainer.signs(seed, name, p[name].shape)
        return float(hand_trainer.loss_and_gradients(p)[0])


@pytest.mark.parametrize(
    ("fault", "verdict"), [("", "PASS"), ("severed", "FAIL"), ("wrong", "FAIL"), ("float32", "INCONCLUSIVE")]
)
def test_a_frame_is_judged_by_its_oracle(tmp_path, fault, verdict):
    path = tmp_path / "frame.safetensors"
    hand_trainer.write_frame(str(path), fault)
    assert audit_frame(read_frame(path), InProcess()).verdict == verdict


def test_a_loss_that_does_not_repeat_is_inconclusive(tmp_path):
    path = tmp_path / "frame.safetensors"
    hand_trainer.write_frame(str(path), "")
    oracle, noise = InProcess(), np.random.default_rng(0)
    exact = oracle.loss
    oracle.loss = lambda seed, steps: exact(seed, steps) + 1e-7 * noise.normal()
    checks = {check.name: check.verdict for check in audit_frame(read_frame(path), oracle).checks}
    assert checks["gradient values"] == "INCONCLUSIVE"
    assert checks["gradient presence"] == "INCONCLUSIVE"
