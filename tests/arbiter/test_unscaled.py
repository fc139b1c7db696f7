import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter.certificate import Verdict
from mothertongue_arbiter.judgement import Judge
from mothertongue_arbiter.run import Declared


def scaled(factor):
    run = ZooRun()
    run.model.embedding.weight.register_hook(lambda gradient: factor * gradient)
    return run


@pytest.mark.parametrize(
    ("put_on", "declared", "verdict"),
    [
        (0.1, 0.1, Verdict.PASS),
        (1.0, 0.1, Verdict.PASS),  # put on later, before the optimizer step
        (-2.0, -2.0, Verdict.PASS),
        (0.0, 0.0, Verdict.PASS),
        (0.1, 0.2, Verdict.FAIL),
        (0.1, 1.0, Verdict.FAIL),
    ],
)
def test_a_gradient_may_be_scaled_as_declared_and_not_otherwise(exact, put_on, declared, verdict):
    with torch.random.fork_rng():
        witness = exact(scaled(put_on)).witness
    judge = Judge(witness, Declared(gradient_scale={"embedding.*": declared}), step=0)
    assert judge.values().verdict == verdict
    assert judge.presence().verdict == Verdict.PASS
