import pytest
import torch
from torch import nn
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer.handover import handed_gradient
from mothertongue_arbiter.torch.optimizer.steps import step_weights, take_steps
from mothertongue_arbiter.torch.run.expectation import Expectation


@pytest.mark.parametrize(
    "drop",
    [
        nn.Dropout(0.3),
        lambda x: F.dropout(x, 0.3, training=True),
        lambda x: torch.dropout(x, 0.3, True),
        lambda x: torch.native_dropout(x, 0.3, True)[0],
        lambda x: x if torch.rand(()) < 0.2 else 1 * x,
        lambda x: x * x.new_empty(4, 1, 1).bernoulli_(0.8).div_(0.8),
        lambda x: x + torch.randn_like(x),
        lambda x: x + torch.empty_like(x).normal_(0.0, 2.0) + torch.empty_like(x).uniform_(-1.0, 1.0),
        lambda x: x * torch.bernoulli(torch.full_like(x, 0.5)) / 0.5,
    ],
)
def test_whatever_drops_or_adds_noise_leaves_everything_as_it_is(drop):
    x = torch.arange(24.0).reshape(4, 2, 3).requires_grad_()
    with Expectation():
        torch.testing.assert_close(drop(x), x)


def test_attention_with_dropout_is_that_without():
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 5, 8)
    expected = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    with Expectation():
        found = F.scaled_dot_product_attention(query, key, value, dropout_p=0.5, is_causal=True)
    torch.testing.assert_close(found, expected)


def test_a_step_with_dropout_is_compared_with_the_whole_batch(subject):
    one = subject(ZooRun(dropout=0.1, accumulation=2))
    assert one.is_random
    assert one.is_still
    rounding = measure_rounding(one)
    steps = take_steps(one)
    assert handed_gradient(one, steps, rounding).verdict == Verdict.PASS
    assert step_weights(one, steps).verdict == Verdict.PASS


def test_an_accumulation_that_forgets_all_but_the_last_fails_with_dropout_too(subject):
    run = ZooRun(dropout=0.1, accumulation=2)
    loss, calls = run.loss, []

    def forgetting(model, batch):
        if len(batch["input_ids"]) < 4:  # a micro-batch
            calls.append(batch)
            model.zero_grad()
        return loss(model, batch)

    one = subject(run)
    rounding = measure_rounding(one)
    run.loss = forgetting
    assert handed_gradient(one, take_steps(one), rounding).verdict == Verdict.FAIL
    assert calls
