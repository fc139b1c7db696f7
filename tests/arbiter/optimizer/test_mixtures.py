import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mothertongue_arbiter import Declared, Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer.handover import handed_gradient
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.run.subject import Unavailable

GROUPS = (Group(parameters=("*",), algorithm="sgd", learning_rate=0.1),)


class OwnLoop:
    """A loop of two micro-batches whose author declares nothing about the optimizer."""

    def __init__(self, alter=lambda run, step: None, *, shares=(0.5, 0.5), lag=0, clip=None):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 11))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.declared = Declared(accumulation=2)
        self.alter, self.shares, self.lag, self.clip = alter, shares, lag, clip

    def batch(self, step):
        return torch.randint(11, (4, 9), generator=torch.Generator().manual_seed(step))

    def micro_batches(self, step, rank=0):
        return list(self.batch(step).chunk(2))

    def loss(self, model, batch):
        return F.cross_entropy(model(batch)[:, :-1].mT, batch[:, 1:])

    def train_step(self, step):
        self.optimizer.zero_grad()
        for share, part in zip(self.shares, self.micro_batches(step + self.lag), strict=True):
            (self.loss(self.model, part) * share).backward()
        self.alter(self, step)
        if self.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.clip)
        self.optimizer.step()


@pytest.fixture
def check(subject):
    def handed(run):
        one = subject(run)
        return handed_gradient(one, take_steps(one), measure_rounding(one))

    return handed


def centralise(run, step):
    for parameter in run.model.parameters():
        if parameter.dim() > 1:
            parameter.grad -= parameter.grad.mean(1, keepdim=True)


def decay(run, step):
    for parameter in run.model.parameters():
        parameter.grad += 0.1 * parameter.detach()


def test_centralised_gradients_pass(check):
    found = check(OwnLoop(centralise))
    assert found.verdict == Verdict.PASS
    assert "less the mean" in found.evidence


def test_a_change_that_no_known_mistake_explains_proves_nothing_unless_an_optimizer_is_declared(check):
    found = check(OwnLoop(decay))
    assert found.verdict == Verdict.INCONCLUSIVE
    assert "on purpose" in found.evidence
    run = OwnLoop(decay)
    run.declared = Declared(accumulation=2, optimizer=Optimizer(groups=GROUPS))
    assert check(run).verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"shares": (0.8, 0.2)}, "weigh unlike"),
        ({"shares": (1.0, 0.0)}, "weigh unlike"),
        ({"lag": 1}, "data of another step"),
    ],
)
def test_mixtures_are_named_without_a_declared_optimizer(check, facts, named):
    found = check(OwnLoop(**facts))
    assert found.verdict == Verdict.FAIL
    assert named in found.cause


def sharpness_aware(run, step):
    with torch.no_grad():
        moves = [0.1 * one.grad for one in run.model.parameters()]
        for one, move in zip(run.model.parameters(), moves, strict=True):
            one += move
    run.optimizer.zero_grad()
    run.loss(run.model, run.batch(step)).backward()
    with torch.no_grad():
        for one, move in zip(run.model.parameters(), moves, strict=True):
            one -= move


def test_a_gradient_at_weights_that_are_moved_and_moved_back_is_not_judged(check):
    with pytest.raises(Unavailable, match="moved back"):
        check(OwnLoop(sharpness_aware))


def test_weights_that_are_moved_and_stay_so_are_judged(check):
    def stray(run, step):
        sharpness_aware(run, step)
        with torch.no_grad():
            run.model[1].weight += 0.1
        run.model[1].weight.grad += 1.0

    run = OwnLoop(stray)
    run.declared = Declared(accumulation=2, optimizer=Optimizer(groups=GROUPS))
    assert check(run).verdict == Verdict.FAIL


@pytest.mark.parametrize(("shares", "verdict"), [((0.5, 0.5), "PASS"), ((1.0, 1.0), "FAIL")])
def test_micro_batches_that_are_summed_are_seen_where_every_gradient_is_clipped(check, shares, verdict):
    run = OwnLoop(shares=shares, clip=0.01)
    run.declared = Declared(accumulation=2, optimizer=Optimizer(groups=GROUPS, clip_norm=0.01))
    found = check(run)
    assert found.verdict == verdict
    if verdict == "FAIL":
        assert found.cause == "the gradients of 2 micro-batches are summed where they should be averaged"
