import pytest
import torch
from torch import nn

from mothertongue_arbiter.torch.on_device.gauge import (
    AFTER,
    ALIVE,
    BEFORE,
    COUNTER,
    GRADIENT,
    SAMPLED,
    STILL,
    UPDATE,
    Gauge,
)


def stepped(parameter, change):
    """Measure one step of `parameter` by SGD along `change`; return the seven numbers."""
    parameter = nn.Parameter(parameter.detach().clone(memory_format=torch.preserve_format))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    gauge = Gauge({"x": parameter})
    gauge.arm()
    parameter.grad = change
    optimizer.step()
    return gauge.measure([optimizer])[:, 0]


@pytest.mark.parametrize("shape", [(3,), (7, 5), (32, 32), (2, 3, 4), ()])
def test_a_small_tensor_is_measured_exactly(shape):
    generator = torch.Generator().manual_seed(0)
    start, change = (torch.randn(shape, generator=generator).double() for _ in range(2))
    numbers = stepped(start, change)
    assert float(numbers[BEFORE]) == pytest.approx(float(start.norm()), rel=1e-12)
    assert float(numbers[AFTER]) == pytest.approx(float((start - 0.5 * change).norm()), rel=1e-12)
    assert float(numbers[GRADIENT]) == pytest.approx(float(change.norm()), rel=1e-12)
    assert float(numbers[UPDATE]) == pytest.approx(0.5 * float(change.norm()), rel=1e-12)
    assert float(numbers[ALIVE]) == start.numel()
    assert float(numbers[STILL]) == 0
    assert bool(numbers[COUNTER].isnan())


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_a_large_tensor_is_sampled_over_all_its_columns(layout):
    change = torch.zeros(300, 128).double()
    change[:, ::2] = 1.0
    start = torch.ones(300, 128).double()
    if layout == "columns":
        start, change = start.T.contiguous().T, change.T.contiguous().T
    numbers = stepped(start, change)
    assert float(numbers[UPDATE]) == pytest.approx(0.5 * float(change.norm()), rel=0.05)
    assert float(numbers[ALIVE]) == pytest.approx(SAMPLED / 2, rel=0.02)


def test_an_absent_gradient_counts_as_none_and_a_present_one_beside_it_is_its_own():
    one, other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4))
    gauge = Gauge({"one": one, "other": other})
    gauge.arm()
    other.grad = torch.full((4,), 2.0)
    numbers = gauge.measure([])
    assert numbers[GRADIENT].tolist() == [0.0, 4.0]
    assert numbers[STILL].tolist() == [0.0, 4.0]


def test_a_sparse_gradient_is_measured():
    embedding = nn.Embedding(10, 3, sparse=True)
    optimizer = torch.optim.SGD(embedding.parameters(), lr=0.1)
    gauge = Gauge({"weight": embedding.weight})
    gauge.arm()
    embedding(torch.tensor([1, 1, 4])).sum().backward()
    optimizer.step()
    numbers = gauge.measure([optimizer])[:, 0]
    assert float(numbers[GRADIENT]) == pytest.approx((3 * 4 + 3) ** 0.5)
    assert (float(numbers[ALIVE]), float(numbers[STILL])) == (6.0, 0.0)
