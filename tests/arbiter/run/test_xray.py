import pytest
import torch
import torch.utils.checkpoint
from torch.nn import functional as F
from zoo import ZooRun

from mothertongue_arbiter.torch.run.xray import captured_logits, xray

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


@pytest.mark.parametrize("smoothing", [0.05, 0.3])
def test_it_reads_how_much_the_labels_are_smoothed(smoothing):
    found, targets = looked_at(
        lambda logits, t: F.cross_entropy(logits.flatten(0, 1), t.flatten(), label_smoothing=smoothing)
    )
    learned = targets >= 0
    assert found.smoothing == pytest.approx(smoothing, abs=1e-9)
    assert found.residual < READABLE
    assert bool((found.labels == targets)[learned].all())
    torch.testing.assert_close(found.weights[learned], torch.full((9,), 1 / 9, dtype=torch.float64))
    assert not bool(found.supervised[~learned].any())


@pytest.mark.parametrize("temperature", [0.5, 2.0, 10.0])
def test_it_reads_by_what_the_loss_divides_the_logits(temperature):
    found, targets = looked_at(
        lambda logits, t: F.cross_entropy(logits.flatten(0, 1) / temperature, t.flatten())
    )
    learned = targets >= 0
    assert found.temperature == pytest.approx(temperature)
    assert bool((found.labels == targets)[learned].all())
    torch.testing.assert_close(found.weights[learned], torch.full((9,), 1 / 9, dtype=torch.float64))
    assert not bool(found.supervised[~learned].any())


def test_a_z_loss_is_not_taken_for_smoothing():
    def loss(logits, targets):
        z = logits.logsumexp(-1).square().mean()
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.01 * z

    found, _ = looked_at(loss)
    assert found.residual > 1e-4
    assert found.smoothing == 0
    assert found.temperature == 1


class Capped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.head = torch.nn.Linear(4, 7), torch.nn.Linear(7, 7)

    def forward(self, x):
        return 5 * torch.tanh(self.head(self.inner(x)) / 5)


def test_only_what_the_outermost_module_returns_are_logits():
    model, x = Capped(), torch.randn(2, 3, 4)
    with captured_logits(7) as captured:
        model(x).sum().backward()
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False).sum().backward()
    assert [one.shape for one in captured] == [(2, 3, 7)] * 2
    assert all(float(one.detach().abs().max()) <= 5 and bool((one.grad == 1).all()) for one in captured)


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
