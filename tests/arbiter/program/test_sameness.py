import pytest
import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.program.sameness import rebuild
from mothertongue_arbiter.torch.run.subject import Unavailable


class Unseeded(ShuffledRun):
    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        generator = torch.Generator()
        generator.seed()  # from the system, another one each time
        with torch.no_grad():
            self.model.head.weight.copy_(torch.randn(self.model.head.weight.shape, generator=generator))


class OtherOrder(ShuffledRun):
    made = 0

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        type(self).made += 1
        self.seed = type(self).made

    def order(self, epoch):
        return torch.randperm(24, generator=torch.Generator().manual_seed(self.seed))


class OtherLoss(ShuffledRun):
    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * 2 if loss.dtype == torch.float64 else loss


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Unseeded, "1 tensors differ: head.weight"),
        (OtherOrder, r"batch\(0\) is another one"),
        (lambda: OtherLoss(0.0), "the loss differs by 100.0%"),
    ],
)
def test_a_program_that_is_another_when_it_is_built_again_is_named(subject, make, said):
    check = rebuild(subject(make()))
    assert check.verdict == "FAIL"
    assert said.replace("\\", "") in check.evidence


def test_a_program_that_is_the_same_passes_in_float64_too(subject):
    check = rebuild(subject(ShuffledRun(0.0)))
    assert check.verdict == "PASS"
    assert "in float64 the same loss" in check.evidence


def test_weights_after_steps_are_said_to_be_others(subject):
    run = ShuffledRun(0.0)
    run.train_step(0)
    assert "as after steps" in rebuild(subject(run)).evidence


def test_a_rebuild_may_make_a_module(subject):
    run = ZooRun()
    run.rebuild = lambda dtype: ZooRun().model.to(dtype or torch.float32)
    assert rebuild(subject(run)).verdict == "PASS"


def test_a_rebuild_with_other_tensors_is_not_compared(subject):
    run = ZooRun()
    run.rebuild = lambda dtype: torch.nn.Linear(2, 2)
    with pytest.raises(Unavailable, match="other tensors"):
        rebuild(subject(run))
