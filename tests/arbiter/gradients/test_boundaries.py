import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter.difference import measure, measure_floor
from mothertongue_arbiter.direction import Direction
from mothertongue_arbiter.torch.gradients.boundaries import BoundaryWitness


@pytest.fixture
def witness(exact):
    def make(run):
        return BoundaryWitness(run, exact(run).batch, seed=0)

    return make


def verdict(witness, names):
    direction = Direction(seed=0, scales={name: witness.scale(name) for name in names})
    return measure(witness, direction, measure_floor(witness)).verdict


def test_boundaries_come_in_the_order_of_time(witness):
    found = witness(ZooRun())
    modules = [boundary.module for boundary in found.boundaries.values() if not boundary.enters]
    assert modules[:4] == ["blocks.0.q", "blocks.0.k", "blocks.0.v", "blocks.0.o"]
    assert modules[-2:] == ["head", ""]
    parents = {boundary.module: boundary.parent for boundary in found.boundaries.values()}
    assert parents["blocks.0.q"] == "blocks.0"
    assert parents[""] is None


def test_a_sound_model_is_right_at_every_boundary(witness):
    found = witness(ZooRun())
    assert verdict(found, found.names()) == "OK"
    assert all(verdict(found, [name]) == "OK" for name in found.names()[::4])


def test_only_boundaries_upstream_of_a_wrong_backward_are_wrong(witness):
    run = ZooRun(tied=False)
    run.model.blocks[1].o.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 2,))
    found = witness(run)
    wrong = [name for name in found.names() if verdict(found, [name]) == "WRONG"]
    last = found.boundaries[wrong[-1]]
    assert (last.module, last.enters) == ("blocks.1.o", True)


def test_measuring_leaves_no_hook_and_no_gradient(witness):
    run = ZooRun()
    witness(run)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in run.model.modules())
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_outputs_of_transformers_and_tuples_are_crossed_too(witness):
    class Pair(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x, *, scale):
            return {"logits": self.inner(x), "both": (x * scale, None)}

    class Run:
        model = Pair()

        def batch(self, step):
            return torch.ones(1, 2, dtype=torch.long)

        def loss(self, model, batch):
            x = torch.ones(2, 4, requires_grad=True)
            found = model(x, scale=torch.ones(4))
            return found["logits"].square().mean() + found["both"][0].square().mean()

    found = witness(Run())
    assert len([one for one in found.boundaries.values() if one.module == "" and not one.enters]) == 2
