from dataclasses import replace

import pytest
import torch
from torch import nn
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.rounding import measure_rounding
from mothertongue_arbiter.torch.state import preserved
from mothertongue_arbiter.torch.steps import take_steps
from mothertongue_arbiter.torch.subject import Unavailable
from mothertongue_arbiter.torch.updates import update_parity

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


@pytest.fixture
def parity(subject):
    def check(run, step=0):
        one = subject(run)
        one.step = step
        rounding = measure_rounding(one)
        with preserved(run):
            return update_parity(one, take_steps(one), rounding)

    return check


@pytest.fixture
def cause(parity):
    def of(run, step=0):
        check = parity(run, step)
        assert check.verdict == Verdict.FAIL, check
        return check.cause

    return of


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


# Sound runs.


@pytest.mark.parametrize("numbers", [{"foreach": True}, {"fused": True}, {"foreach": False}], ids=str)
def test_every_implementation_of_adamw_is_adamw(parity, numbers):
    check = parity(with_groups(declaring(), **numbers))
    assert check.verdict == Verdict.PASS, check
    assert "20 adamw tensors" in check.evidence


def test_without_a_declaration_the_numbers_of_the_optimizer_are_taken_and_that_is_said(parity):
    check = parity(ZooRun())
    assert check.verdict == Verdict.PASS, check
    assert "none are declared" in check.evidence


def test_a_later_step_continues_from_the_moments_of_the_optimizer(parity):
    run = declaring(adamw(learning_rate=rising))
    run.learning_rate = rising
    for step in range(4):
        run.train_step(step)
    assert parity(run, step=4).verdict == Verdict.PASS


SGD = {"momentum": 0.9, "nesterov": True}


def test_sgd_with_momentum_and_decay_passes(parity):
    group = Group(parameters=ALL, algorithm="sgd", learning_rate=LEARNING_RATE, weight_decay=0.02, **SGD)
    run = declaring(Optimizer(groups=(group,), clip_norm=0.5))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=LEARNING_RATE, weight_decay=0.02, **SGD)
    assert parity(run).verdict == Verdict.PASS


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


def test_a_lion_written_by_hand_passes(parity):
    run = declaring(lion(betas=(0.9, 0.99), weight_decay=0.1))
    run.optimizer = Lion(run.model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=0.1)
    assert parity(run).verdict == Verdict.PASS
    assert parity(run, step=1).verdict == Verdict.PASS  # the state is that of a fresh optimizer


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


@pytest.mark.parametrize("declared", [True, False])
def test_two_optimizers_with_muon_pass(parity, declared):
    run = muon_and_adamw(ZooRun())
    check = parity(declaring(muon(), run) if declared else run)
    assert check.verdict == Verdict.PASS, check
    assert "14 muon" in check.evidence


def test_a_warm_up_from_zero_passes_when_declared_so(parity):
    run = declaring(adamw(learning_rate=lambda step: LEARNING_RATE * step / 10), warmup_steps=10)
    run.learning_rate = lambda step: LEARNING_RATE * step / 10
    assert parity(run).verdict == Verdict.PASS


def test_a_tensor_without_gradient_is_passed_over_and_counts_nothing(parity):
    run = declaring(adamw(learning_rate=LEARNING_RATE, betas=(0.9, 0.95)), conditional=("*gate*",))
    with_groups(run, betas=(0.9, 0.95))
    accumulate = run.accumulate

    def sometimes(step):
        accumulate(step)
        if step == 1:
            run.model.blocks[0].gate.weight.grad = None

    run.accumulate = sometimes
    assert parity(run).verdict == Verdict.PASS


def test_a_loss_scale_that_is_undone_passes_also_inside_a_fused_step(parity):
    run = with_groups(declaring(Optimizer(groups=adamw().groups)), fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train_step(step):
        run.optimizer.zero_grad()
        scaler.scale(run.loss(run.model, run.batch(step))).backward()
        scaler.step(run.optimizer)
        scaler.update()

    run.train_step = train_step
    assert parity(run).verdict == Verdict.PASS


def test_frozen_parameters_pass(parity):
    run = declaring(frozen=("blocks.0.*",))
    run.model.blocks[0].requires_grad_(False)
    run.make_optimizer()
    assert parity(run).verdict == Verdict.PASS


@pytest.mark.parametrize("accumulation", [1, 2])
def test_a_step_written_by_hand_is_judged_by_the_weights_alone(parity, accumulation):
    run = declaring(Optimizer(groups=adamw(decay=0.0).groups), ZooRun(accumulation=accumulation))
    hidden, run.optimizer = torch.optim.AdamW(run.model.parameters(), weight_decay=0.0), None

    def train_step(step):
        hidden.zero_grad()
        run.accumulate(step)
        hidden.step()

    run.train_step = train_step
    assert parity(run).verdict == Verdict.PASS
    run = declaring(Optimizer(groups=adamw(learning_rate=2e-3).groups), run)
    assert parity(run).verdict == Verdict.FAIL


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


def test_low_precision_weights_that_follow_their_masters_pass(parity):
    assert parity(with_masters(declaring(master_weights()))).verdict == Verdict.PASS


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


def test_masters_out_of_sight_are_allowed_for(parity):
    assert parity(with_masters_inside(0.02)).verdict == Verdict.PASS
    assert parity(with_masters_inside(0.03)).verdict == Verdict.FAIL


def test_what_rounding_hides_is_not_said_to_agree(parity):
    run = with_masters(declaring(master_weights()))
    run.optimizer = None
    with pytest.raises(Unavailable, match="rounding"):
        parity(run)


# Faults.


def test_decay_on_gains_is_found_and_measured(cause):
    run = with_groups(declaring(), gain_decay=0.1)
    assert cause(run) == "weight decay 0.1 where none is declared"


def test_decay_ten_times_too_large_is_found_and_measured(cause):
    assert cause(with_groups(declaring(), decay=0.1)) == "weight decay 0.1 where 0.01 is declared"


def test_coupled_decay_is_named(cause):
    run = declaring(adamw(decay=0.1))
    assert "coupled" in cause(with_groups(run, torch.optim.Adam, decay=0.1))


def test_a_schedule_that_is_never_applied_is_named(cause):
    assert "the schedule is not applied" in cause(declaring(adamw(learning_rate=rising)))


def test_a_constant_rate_in_a_declared_warm_up_fails_also_without_a_declared_optimizer(cause):
    run = ZooRun()
    run.declared = replace(run.declared, warmup_steps=10)
    assert cause(run) == "the schedule is never applied"


@pytest.mark.parametrize(
    ("rate", "named"),
    [
        (lambda step: rising(2 * step), "stepped several times"),
        (lambda step: rising(2 * step + 1), "stepped several times"),
        (lambda step: rising(step - 1), "one step late"),
        (lambda step: rising(step + 1), "one step early"),
        (lambda step: 3 * rising(step), "3 times the declared"),
    ],
)
def test_a_wrong_learning_rate_is_named(cause, rate, named):
    run = declaring(adamw(learning_rate=rising))
    run.learning_rate = rate
    assert named in cause(run)


def test_a_wrong_learning_rate_of_muon_is_found_through_its_bfloat16(cause):
    run = declaring(muon(learning_rate=0.021), muon_and_adamw(ZooRun()))
    assert "times the declared" in cause(run)


def test_the_other_size_of_a_muon_step_is_named(cause):
    run = declaring(muon(), muon_and_adamw(ZooRun(), adjust_lr_fn="match_rms_adamw"))
    assert "'moonshot'" in cause(run)


@pytest.mark.parametrize(
    ("numbers", "named"),
    [
        ({"betas": (0.999, 0.9)}, "swapped"),
        ({"betas": (0.9, 0.95)}, "betas (0.9, 0.95)"),
        ({"eps": 1e-4}, "eps 0.0001"),
    ],
)
def test_other_numbers_are_named(cause, numbers, named):
    assert named in cause(with_groups(declaring(), **numbers))


def test_plain_momentum_where_nesterov_is_declared_is_named(cause):
    group = Group(parameters=ALL, algorithm="sgd", learning_rate=LEARNING_RATE, **SGD)
    run = declaring(Optimizer(groups=(group,)))
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    assert "plain" in cause(run)


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


def test_an_adam_written_by_hand_passes(parity):
    assert parity(hand_adam()).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("mistake", "named"),
    [
        ({"correct": False}, "no bias correction"),
        ({"forget": True}, "start afresh"),
        ({"dtype": torch.bfloat16}, "in bfloat16"),
        ({"late": True}, "the step before"),
    ],
)
def test_a_mistake_inside_the_optimizer_is_named(cause, mistake, named):
    assert named in cause(hand_adam(**mistake))


@pytest.mark.parametrize("declared", [True, False])
def test_a_step_counter_that_is_set_back_is_found(cause, declared):
    run = declaring() if declared else ZooRun()
    step = run.optimizer.step

    def forgetful():
        step()
        run.optimizer.state.clear()

    run.optimizer.step = forgetful
    assert "start afresh" in cause(run)


def test_moments_that_cannot_be_read_in_the_middle_of_a_run_are_not_guessed(parity):
    run = hand_adam(dtype=torch.float64)
    for step in range(2):
        run.train_step(step)
    for state in run.optimizer.state.values():
        state["mine"] = state.pop("exp_avg")
    with pytest.raises(Unavailable, match="cannot be read"):
        parity(run, step=2)


def test_a_gradient_that_is_no_number_is_called_so(cause):
    run = declaring()
    run.model.blocks[0].up.weight.register_hook(lambda g: g * float("nan"))
    assert "not a finite number" in cause(run)


def test_updates_lost_in_bfloat16_weights_are_named(cause):
    run = declaring()
    run.model.to(torch.bfloat16)
    run.make_optimizer()
    assert "lost to the rounding" in cause(run)


def test_masters_that_are_never_written_back_are_named(cause):
    assert "not written back" in cause(with_masters(declaring(master_weights()), write_back=False))


def test_an_optimizer_that_holds_an_old_copy_is_named(cause):
    run = declaring()
    block = run.model.blocks[0]
    block.q.weight = nn.Parameter(block.q.weight.detach().clone())
    assert "not updated at all" in cause(run)


@pytest.mark.parametrize("declared", [True, False])
def test_an_update_written_into_a_contiguous_copy_is_named(cause, declared):
    """As addcdiv_ did on MPS (pytorch #118115)."""
    run = declaring() if declared else ZooRun()
    weight = run.model.blocks[1].up.weight
    weight.data = weight.data.t().contiguous().t()
    run.make_optimizer()
    step = run.optimizer.step

    def losing():
        kept = weight.detach().clone()
        step()
        weight.data.copy_(kept)

    run.optimizer.step = losing
    assert "not updated at all" in cause(run)


def test_a_second_step_in_one_step_is_named(cause):
    run = declaring()
    train_step = run.train_step
    run.train_step = lambda step: (train_step(step), run.optimizer.step())
    assert "each micro-batch, or twice" in cause(run)


def test_weights_that_something_else_moves_too_are_named(cause):
    run = declaring()
    train_step = run.train_step

    def decaying(step):
        train_step(step)
        with torch.no_grad():
            run.model.norm.mul_(0.999)

    run.train_step = decaying
    assert "outside of optimizer.step()" in cause(run)


def test_a_trained_tensor_that_no_group_owns_fails(parity):
    run = declaring(Optimizer(groups=(Group(parameters=("blocks.*",), learning_rate=LEARNING_RATE),)))
    check = parity(run)
    assert check.verdict == Verdict.FAIL
    assert {finding.subject for finding in check.findings} == {"embedding.weight", "norm"}
