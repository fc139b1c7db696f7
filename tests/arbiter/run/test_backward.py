import pytest
import torch
from torch import nn
from zoo import ZooRun

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.torch.run.backward import backward, distance, logits_of, same_start, scalar


def test_dropout_repeats_with_the_same_seed_and_not_with_another():
    run = ZooRun(dropout=0.3)
    batch = run.batch(0)
    one, same, other = (backward(run, batch, seed=seed) for seed in (1, 1, 2))
    assert one.loss == same.loss
    assert one.loss != other.loss
    assert all(distance(one.gradients, same.gradients, name) == 0 for name in one.gradients)


def test_no_gradient_is_left_in_the_model():
    run = ZooRun()
    backward(run, run.batch(0), seed=0)
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_absent_gradients_are_far_from_present_ones():
    some, zero = torch.ones(3), torch.zeros(3)
    assert distance({"w": None}, {"w": some}, "w") == 1.0
    assert distance({"w": some}, {"w": None}, "w") == 1.0
    assert distance({"w": None}, {"w": zero}, "w") == 0.0
    assert distance({"w": None}, {"w": None}, "w") == 0.0
    assert distance({"w": 1.5 * some}, {"w": some}, "w") == pytest.approx(0.5)
    assert distance({"w": some}, {"w": zero}, "w") == float("inf")


def test_what_is_no_scalar_is_said_to_be():
    assert scalar(torch.ones(1, 1)).shape == ()
    with pytest.raises(ArbiterError, match="a float found"):
        scalar(1.0)


def test_logits_are_found_in_what_models_return():
    logits = torch.ones(2, 3, 4)
    holder = type("Output", (), {"logits": logits})()
    for output in (logits, (logits, None), holder):
        assert logits_of(output) is logits
    with pytest.raises(ArbiterError, match="logits of shape"):
        logits_of(torch.ones(2, 4))


def test_buffers_are_left_as_they_were_found():
    class Moving(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("added_to", torch.zeros(2))
            self.register_buffer("replaced", torch.zeros(2))
            self.register_buffer("none", None)

        def forward(self):
            self.added_to += 1
            self.replaced = self.replaced + 1

    model = Moving()
    held = model.replaced
    for _ in range(2):
        with same_start(model, 3):
            model()
            assert model.added_to.tolist() == model.replaced.tolist() == [1, 1]
            drawn = torch.rand(())
    assert model.replaced is held
    assert model.added_to.tolist() == model.replaced.tolist() == [0, 0]
    torch.manual_seed(3)
    assert drawn == torch.rand(())
