"""Runs that declare their optimizer, sound or nearly so, and the judgement of their updates."""

from dataclasses import replace

import torch
from torch import nn
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.optimizer.updates import update_parity
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Subject

NORMS, ALL = ("*norm*",), ("*",)


def adamw(*, learning_rate=LEARNING_RATE, decay=0.01, **numbers):
    """The optimizer of the zoo: no decay on gains, clipping to 0.5."""
    return Optimizer(
        groups=(
            Group(parameters=NORMS, learning_rate=learning_rate, **numbers),
            Group(parameters=ALL, learning_rate=learning_rate, weight_decay=decay, **numbers),
        ),
        clip_norm=0.5,
    )


def declaring(optimizer=None, run=None, **facts):
    run = run or ZooRun()
    run.declared = replace(run.declared, optimizer=optimizer or adamw(), **facts)
    return run


def rising(step):
    return LEARNING_RATE * (step + 1) / 10


def parity(run, step=0):
    """Take the steps of `run` from `step` on, judge the updates, and leave it as it was."""
    subject = Subject(run, step=step, options=Options())
    rounding = measure_rounding(subject)
    with preserved(run):
        return update_parity(subject, take_steps(subject), rounding)


def cause(run, step=0):
    check = parity(run, step)
    assert check.verdict == Verdict.FAIL, check
    return check.cause


def with_groups(run, make=torch.optim.AdamW, *, decay=0.01, gain_decay=0.0, **numbers):
    """Let the run use another optimizer than it declares."""
    matrices = [p for p in run.model.parameters() if p.dim() == 2]
    gains = [p for p in run.model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": decay},
        {"params": gains, "weight_decay": gain_decay},
    ]
    run.optimizer = make(groups, **{"lr": LEARNING_RATE, **numbers})
    return run


SGD = {"momentum": 0.9, "nesterov": True}


class Lion(torch.optim.Optimizer):
    """As a user writes it."""

    def __init__(self, parameters, **numbers):
        super().__init__(parameters, numbers)

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                one, two = group["betas"]
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_((m * one + p.grad * (1 - one)).sign(), alpha=-group["lr"])
                m.mul_(two).add_(p.grad, alpha=1 - two)


def lion(**numbers):
    return Optimizer(
        groups=(Group(parameters=ALL, algorithm="lion", learning_rate=LEARNING_RATE, **numbers),),
        clip_norm=0.5,
    )


def muon_and_adamw(run, **numbers):
    """torch's own pair: Muon for the matrices of the blocks, AdamW for the rest."""
    inner = [p for name, p in run.model.named_parameters() if p.dim() == 2 and "blocks" in name]
    rest = [p for p in run.model.parameters() if not any(p is one for one in inner)]
    muon = torch.optim.Muon(inner, lr=0.02, weight_decay=0.1, **numbers)
    run.optimizer = [muon, torch.optim.AdamW(rest, lr=LEARNING_RATE, weight_decay=0.0)]

    def train_step(step):
        for optimizer in run.optimizer:
            optimizer.zero_grad()
        run.accumulate(step)
        for optimizer in run.optimizer:
            optimizer.step()

    run.train_step = train_step
    return run


def muon(**numbers):
    facts = {"learning_rate": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True}
    return Optimizer(
        groups=(
            Group(parameters=("blocks.*.weight",), algorithm="muon", **facts | numbers),
            Group(parameters=ALL, learning_rate=LEARNING_RATE),
        )
    )


def with_masters(run, *, write_back=True, dtype=torch.bfloat16):
    """Weights in low precision, float32 masters in the optimizer."""
    run.model.to(dtype)
    names = dict(run.model.named_parameters())
    masters = {name: nn.Parameter(weight.detach().float().clone()) for name, weight in names.items()}
    optimizer = torch.optim.AdamW(masters.values(), lr=LEARNING_RATE, weight_decay=0.0)
    run.optimizer = optimizer

    def train_step(step):
        run.model.zero_grad()
        run.accumulate(step)
        for name, master in masters.items():
            master.grad = names[name].grad.float()
        optimizer.step()
        with torch.no_grad():
            for name, master in masters.items():
                if write_back:
                    names[name].copy_(master)

    run.train_step = train_step
    return run


def master_weights():
    return Optimizer(groups=(Group(parameters=ALL, learning_rate=LEARNING_RATE),), master_dtype="float32")


class MastersInside(torch.optim.AdamW):
    """Holds the weights of the model, and keeps their masters to itself."""

    @torch.no_grad()
    def step(self):
        weights = [p for group in self.param_groups for p in group["params"]]
        if not hasattr(self, "inner"):
            self.inside = [nn.Parameter(p.detach().float().clone()) for p in weights]
            self.inner = torch.optim.AdamW(self.inside, lr=0.02, weight_decay=0.0)
        for p, master in zip(weights, self.inside, strict=True):
            master.grad = p.grad.float()
        self.inner.step()
        for p, master in zip(weights, self.inside, strict=True):
            p.copy_(master)


def with_masters_inside(learning_rate):
    group = Group(parameters=ALL, learning_rate=learning_rate)
    run = declaring(Optimizer(groups=(group,), master_dtype="float32"))
    run.model.to(torch.bfloat16)
    run.optimizer = MastersInside(run.model.parameters())
    run.learning_rate = lambda step: 0.02
    return run


class HandAdam(torch.optim.Optimizer):
    """An Adam with room for mistakes."""

    correct, forget, dtype, late = True, False, torch.float32, False

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": LEARNING_RATE})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                gradient = p.grad
                if self.late:
                    gradient, state["last"] = state.get("last"), p.grad.clone()
                    if gradient is None:
                        continue
                if "exp_avg" not in state or self.forget:
                    state["step"] = 0
                    state["exp_avg"] = torch.zeros_like(p, dtype=self.dtype)
                    state["exp_avg_sq"] = torch.zeros_like(p, dtype=self.dtype)
                state["step"] += 1
                state["exp_avg"].mul_(0.9).add_(gradient.to(self.dtype), alpha=0.1)
                state["exp_avg_sq"].mul_(0.999).add_((gradient * gradient).to(self.dtype), alpha=0.001)
                m, v = state["exp_avg"].float(), state["exp_avg_sq"].float()
                if self.correct:
                    m, v = m / (1 - 0.9 ** state["step"]), v / (1 - 0.999 ** state["step"])
                p.sub_(group["lr"] * m / (v.sqrt() + 1e-8))


def hand_adam(**mistake):
    run = declaring(adamw(decay=0.0))
    run.optimizer = HandAdam(run.model.parameters())
    vars(run.optimizer).update(mistake)
    return run
