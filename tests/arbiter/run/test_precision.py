import pytest
import torch
from torch import nn

from mothertongue_arbiter.torch.run.precision import true_float64


class Casting(nn.Module):
    """Casts to lower precision in every way that models do."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("table", torch.rand(4))
        self.cached = torch.rand(4)  # no buffer: stays float32
        self.seen = []

    def forward(self, x):
        h = self.inner(x.float())
        h = h * torch.rsqrt(h.to(torch.bfloat16).square().mean(-1, keepdim=True) + 1e-6)
        h = h + torch.ones(4, dtype=torch.float32) * self.table.half() + self.cached
        h = h + torch.arange(4).float()
        self.seen.append(h.dtype)
        return torch.softmax(h, -1, dtype=torch.float32).sum()


def test_every_cast_is_promoted_and_its_module_named():
    model = Casting()
    with true_float64(model) as mode:
        loss = model(torch.rand(2, 4, dtype=torch.float64))
        loss.backward()
        assert loss.dtype == torch.float64
        assert model.inner.weight.grad.dtype == torch.float64
        assert model.seen == [torch.float64]
    assert {dtype for _, dtype in mode.casts} == {"float32", "bfloat16", "float16"}
    assert {module for module, _ in mode.casts} == {"Casting"}


def test_autocast_has_no_say():
    model = nn.Linear(8, 8)
    with true_float64(model), torch.autocast("cpu", torch.bfloat16):
        output = model(torch.rand(2, 8, dtype=torch.float64))
    assert output.dtype == torch.float64


def test_the_default_precision_comes_back():
    with true_float64(nn.Linear(2, 2)):
        assert torch.ones(1).dtype == torch.float64
    assert torch.ones(1).dtype == torch.float32


def test_parameters_are_remembered_in_the_order_of_their_use():
    first, second = nn.Linear(2, 2), nn.Linear(2, 2)
    model = nn.ModuleDict({"second": second, "first": first})
    with true_float64(model) as mode:
        second(first(torch.ones(1, 2)))
    assert sorted(mode.uses, key=mode.uses.get)[0] in map(id, first.parameters())
    assert set(mode.uses) == set(map(id, model.parameters()))


def test_a_table_made_before_the_audit_is_known_to_be_rounded():
    model = nn.Linear(2, 2)
    with true_float64(model) as mode:
        model(torch.ones(1, 2, dtype=torch.float64))
        assert not mode.has_rounded_tables
        model.weight * torch.ones(2, dtype=torch.float16).to(torch.float64)  # promoted when it is made
        assert not mode.has_rounded_tables
    model.register_buffer("cos", torch.ones(2))
    with true_float64(model) as mode:
        assert mode.has_rounded_tables


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: torch.rand(20),
        lambda x: torch.randn(20, generator=torch.Generator().manual_seed(3)),
        lambda x: torch.randn(20, dtype=x.dtype),
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.normal(0.0, 1.0, (20,)),
        lambda x: torch.normal(x, 2.0),
        lambda x: torch.rand(size=(20,)),
        lambda x: torch.empty_like(x).uniform_(-1, 1),
        lambda x: torch.empty(20).normal_(),
        torch.bernoulli,
        lambda x: torch.nn.functional.dropout(x, 0.3),
    ],
)
def test_the_numbers_that_are_drawn_are_those_of_the_run(draw):
    torch.manual_seed(5)
    own = draw(torch.full((20,), 0.5))
    with true_float64(nn.Linear(2, 2)):
        torch.manual_seed(5)
        exact = draw(torch.full((20,), 0.5))
    assert exact.dtype == torch.float64
    assert (exact - own).abs().max() < 1e-6


def test_an_epsilon_that_follows_the_precision_stays_that_of_the_run():
    norm, small = nn.RMSNorm(8), torch.linspace(1e-4, 8e-4, 8)
    own = norm(small)
    with true_float64(norm):
        exact = norm(small.double())
        by_hand = small.double() * (small.double().square().mean() + torch.finfo(torch.float64).eps).rsqrt()
    assert own.square().mean().sqrt() < 0.9  # of an epsilon that is felt
    assert torch.allclose(exact, own.double(), rtol=1e-6)
    assert torch.allclose(by_hand, own.double(), rtol=1e-6)
    with true_float64(norm.double()):  # a run in float64 has the epsilon of float64
        assert norm(small.double()).square().mean().sqrt() > 0.999
