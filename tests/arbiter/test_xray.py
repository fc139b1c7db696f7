import pytest
import torch
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter.torch.xray import captured_logits, xray

READABLE = 1e-9  # float64


def looked_at(loss_of, rows=2, tokens=5, vocabulary=11):
    torch.manual_seed(0)
    logits = torch.randn(rows, tokens, vocabulary, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, vocabulary, (rows, tokens))
    targets[0, 1] = -100
    loss_of(logits, targets).backward()
    return xray(logits), targets


def test_it_reads_every_label_and_weight_of_a_mean():
    found, targets = looked_at(lambda logits, t: F.cross_entropy(logits.flatten(0, 1), t.flatten()))
    learned = targets >= 0
    assert bool((found.supervised == learned).all())
    assert bool((found.labels == targets)[learned].all())
    torch.testing.assert_close(found.weights[learned], torch.full((9,), 1 / 9, dtype=torch.float64))
    assert found.residual < READABLE


def test_it_reads_unequal_weights():
    def loss(logits, targets):
        rows = F.cross_entropy(logits.transpose(1, 2), targets, reduction="none").sum(1)
        return 3 * rows[0] + rows[1]

    found, targets = looked_at(loss)
    expected = torch.tensor([[3.0], [1.0]], dtype=torch.float64).expand(2, 5)
    learned = targets >= 0
    torch.testing.assert_close(found.weights[learned], expected[learned])


def test_what_is_no_cross_entropy_leaves_a_residual():
    found, _ = looked_at(lambda logits, targets: logits.square().sum())
    assert found.residual > 0.1


@pytest.mark.parametrize("vocabulary", [48, None])
def test_the_logits_of_a_model_are_caught_on_their_way(vocabulary):
    run = ZooRun()
    with captured_logits(vocabulary, least=40) as captured:
        run.loss(run.model, run.batch(0)).backward()
    assert captured[-1].shape == (4, 14, 48)
    assert captured[-1].grad is not None
