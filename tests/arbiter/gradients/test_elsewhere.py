import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mothertongue_arbiter import Declared, audit

CAP = 15.0


class Cap(torch.autograd.Function):
    """A soft cap whose backward may forget that it bends."""

    @staticmethod
    def forward(ctx, x, forgets):
        ctx.forgets = forgets
        ctx.save_for_backward(torch.tanh(x / CAP))
        return CAP * torch.tanh(x / CAP)

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return (gradient if ctx.forgets else gradient * (1 - y * y)), None


class CappedRun:
    """Tiny logits under a soft cap, and a branch that begins at zero and may be cut off behind that zero."""

    def __init__(self, *, forgets=False, cut=False):
        torch.manual_seed(0)
        self.model = nn.ModuleDict(
            {
                "embed": nn.Embedding(11, 8),
                "up": nn.Linear(8, 8),
                "down": nn.Linear(8, 8),
                "head": nn.Linear(8, 11),
            }
        )
        nn.init.normal_(self.model["head"].weight, std=1e-3)
        for one in (self.model["down"].weight, self.model["down"].bias, self.model["head"].bias):
            nn.init.zeros_(one)
        self.declared = Declared(order_matters=False)
        self.forgets, self.cut = forgets, cut

    def batch(self, step):
        return torch.randint(11, (2, 12), generator=torch.Generator().manual_seed(step))

    def forward(self, model, batch):
        x = model["embed"](batch)
        up = F.gelu(model["up"](x))
        x = x + model["down"](up.detach() if self.cut else up)
        return Cap.apply(model["head"](x), self.forgets)

    def loss(self, model, batch):
        return F.cross_entropy(self.forward(model, batch)[:, :-1].mT, batch[:, 1:])


def verdict(run, name):
    return next(check for check in audit(run).checks if check.name == name)


@pytest.mark.parametrize("name", ["gradient values", "gradient presence"])
def test_small_weights_of_a_sound_run_do_not_alarm(name):
    check = verdict(CappedRun(), name)
    assert check.verdict == "PASS"


def test_a_soft_cap_without_its_bend_is_seen_through_logits_that_are_too_small_to_bend():
    check = verdict(CappedRun(forgets=True), "gradient values")
    assert check.verdict == "FAIL"
    assert "small tensors at the usual size" in check.evidence


def test_a_cut_behind_a_projection_that_starts_at_zero_is_seen():
    check = verdict(CappedRun(cut=True), "gradient presence")
    assert check.verdict == "FAIL"
    assert "up.weight" in check.evidence
