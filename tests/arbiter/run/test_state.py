import random

import numpy as np
import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter import Options, audit
from mothertongue_arbiter.torch.run.state import parts_of, preserved


class Busy(ZooRun):
    """A run with everything that an audit could disturb."""

    def __post_init__(self):
        super().__post_init__()
        self.model.register_buffer("seen", torch.zeros(3))
        self.model.cache = {}
        self.scheduler = torch.optim.lr_scheduler.LinearLR(self.optimizer, total_iters=9)
        self.generator = torch.Generator().manual_seed(3)
        self.numbers = np.random.default_rng(4)
        self.losses = []

    def learning_rate(self, step):
        return self.scheduler.get_last_lr()[0]

    def train_step(self, step):
        super().train_step(step)
        self.scheduler.step()
        self.model.seen += 1
        self.model.cache["table"] = torch.ones(2)
        self.losses.append(torch.rand(1, generator=self.generator).item() + self.numbers.random())


def fingerprint(run):
    tensors = [*run.model.parameters(), *run.model.buffers()]
    state = run.optimizer.state_dict()
    return {
        "values": [(tensor.data_ptr(), tensor.dtype, tensor.detach().clone()) for tensor in tensors],
        "gradients": [
            (id(p.grad), None if p.grad is None else p.grad.clone()) for p in run.model.parameters()
        ],
        "optimizer": [value.clone() for entry in state["state"].values() for value in entry.values()],
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in state["param_groups"]],
        "scheduler": run.scheduler.state_dict(),
        "modes": [(module.training, list(vars(module))) for module in run.model.modules()],
        "own": (list(run.losses), dict(run.model.cache), run.generator.get_state(), run.numbers.random()),
        "random": (torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()),  # noqa: NPY002
    }


def assert_same(one, other):
    if isinstance(one, torch.Tensor):
        assert one.dtype == other.dtype
        assert torch.equal(one, other)
    elif isinstance(one, np.ndarray):
        assert (one == other).all()
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_audit_leaves_the_run_exactly_as_it_was(steps_before):
    run = Busy(dropout=0.1)
    for step in range(steps_before):
        run.train_step(step)
    run.model.blocks[0].eval()
    numbers = run.numbers.bit_generator.state
    before = fingerprint(run)
    run.numbers.bit_generator.state = numbers
    audit(run, options=Options(random_directions=1))
    assert_same(before, fingerprint(run))


def test_training_continues_after_an_audit_as_if_there_had_been_none():
    audited, plain = Busy(), Busy()
    for step in range(4):
        if step == 2:
            audit(audited, options=Options(random_directions=1))
        audited.train_step(step)
        plain.train_step(step)
    for one, other in zip(audited.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_run_whose_step_raises_is_restored_too():
    run = Busy()

    def failing(step):
        Busy.train_step(run, step)
        raise RuntimeError("the disk is full")

    before = fingerprint(run)
    run.train_step = failing
    run.numbers = np.random.default_rng(4)
    certificate = audit(run)
    del run.train_step
    run.numbers = np.random.default_rng(4)
    assert_same(before, fingerprint(run))
    assert certificate.verdict == "INCONCLUSIVE"
    answers = {check.name: check.evidence for check in certificate.checks}
    assert "the disk is full" in answers["movement"]


def test_a_sparse_gradient_that_was_there_is_there_again():
    run = ZooRun()
    run.model.extra = torch.nn.Embedding(6, 2, sparse=True)
    run.model.extra(torch.tensor([1, 4])).sum().backward()
    weight = run.model.extra.weight
    expected = weight.grad.to_dense()
    with preserved(run):
        weight.grad = None
        run.model.extra(torch.tensor([2])).sum().backward()
    assert weight.grad.is_sparse
    assert torch.equal(weight.grad.to_dense(), expected)


def test_the_parts_of_an_optimizer_are_found_in_its_attributes():
    one, other = (torch.optim.SGD([torch.zeros(1)], lr=0.1) for _ in range(2))

    class Wrapper:
        def __init__(self):
            self.inner, self.each, self.corpus = one, {"a": other, "b": one}, [0] * 20_000

    assert parts_of(Wrapper()) == [one, other]
    assert parts_of(one) == []
