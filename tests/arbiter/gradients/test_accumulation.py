import pytest
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.accumulation import accumulation
from mothertongue_arbiter.torch.run.subject import Unavailable


class WithoutStep:
    def __init__(self, whole):
        self.model, self.loss, self.batch = whole.model, whole.loss, whole.batch
        self.micro_batches, self.declared = whole.micro_batches, whole.declared


def test_equal_micro_batches_are_their_batch(exact):
    assert accumulation(exact(WithoutStep(ZooRun(accumulation=2)))).verdict == Verdict.PASS


def test_a_mean_of_unequal_means_is_not(exact):
    run = ZooRun(accumulation=2)
    batch = run.batch

    def uneven(step):
        found = batch(step)
        found["targets"][0, 2:] = -100
        return found

    run.batch = uneven
    check = accumulation(exact(WithoutStep(run)))
    assert check.verdict == Verdict.FAIL
    assert "mean of micro-batch means" in check.cause


def test_the_real_step_goes_before(exact):
    with pytest.raises(Unavailable, match="real step"):
        accumulation(exact(ZooRun(accumulation=2)))
