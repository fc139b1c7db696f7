import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter.torch.run.subject import Unavailable


def test_dropout_is_noticed(subject):
    assert subject(ZooRun(dropout=0.1)).is_random
    assert not subject(ZooRun()).is_random


def test_an_optional_member_that_is_absent_is_named(subject):
    with pytest.raises(Unavailable, match="the run has no `ema`"):
        subject(ZooRun()).need("ema")


def test_documents_of_another_shape_are_not_used(subject):
    run = ZooRun()
    run.documents = lambda step, rank: torch.zeros(4, 3)
    with pytest.raises(Unavailable, match=r"shape \(4, 3\)"):
        _ = subject(run).documents


def test_stirring_moves_zero_weights_and_puts_them_back(exact):
    run = ZooRun()
    torch.nn.init.zeros_(run.model.blocks[0].o.weight)
    one = exact(run)
    with one.stirred():
        assert bool(run.model.blocks[0].o.weight.all())
    assert not bool(run.model.blocks[0].o.weight.any())
