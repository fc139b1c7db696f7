"""Family c: the gradient is right; what is done with it is not what is declared."""

import math
from dataclasses import replace

import torch
from torch import nn

from faults.fault import fault, sound
from faults.subject import BETAS, CLIP_NORM, LEARNING_RATE, WEIGHT_DECAY, warmed_up

PARITY = "update parity"


def group_options(run, **options):
    for group in run.optimizer.param_groups:
        group.update(options)


@fault("accelerate#2665", "optimizer coverage", "movement")
def c1_layer_missing_from_the_optimizer(run):
    missing = {id(parameter) for parameter in run.model.blocks[0].parameters()}
    for group in run.optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in missing]


@fault("pytorch#149205", "optimizer coverage")
def c2_optimizer_made_before_the_final_tensors(run):
    block = run.model.blocks[0]
    block.q.weight = nn.Parameter(block.q.weight.detach().clone())


@fault("transformers#35927", "optimizer coverage", PARITY)
def c3_norms_decayed(run):
    run.optimizer = torch.optim.AdamW(run.model.parameters(), LEARNING_RATE, BETAS, weight_decay=WEIGHT_DECAY)


@fault("c5_schedule_never_applied", PARITY)
def c4_schedule_never_applied(run):
    run.learning_rate = lambda step: LEARNING_RATE


@fault("transformers#24088", PARITY)
def c5_schedule_stepped_once_a_process(run):
    run.learning_rate = lambda step: warmed_up(4 * step)


@fault("candle: AdamW moments in the dtype of the weights", PARITY, "dtypes")
def c6_bfloat16_weights_without_master(run):
    run.model.to(torch.bfloat16)
    run.prepare()


@fault("c7_zero_grad_missing", "gradient handed over")
def c7_zero_grad_missing(run):
    run.optimizer.zero_grad = lambda: None


@fault("lightning#9599", "gradient handed over")
def c8_clipped_before_unscaling(run):
    """The gradients are clipped while they are still 65536 times too large."""
    clip = run.clip

    def clipped(model):
        for parameter in model.parameters():
            parameter.grad *= 65536
        clip(model)
        for parameter in model.parameters():
            parameter.grad /= 65536

    run.clip = clipped


@fault("deepspeed#8588", "gradient handed over")
def c9_divided_by_the_next_loss_scale(run):
    """Where the scale has just doubled, a gradient is used at half its size; Adam remembers it."""
    steps, clip = [], run.clip

    def clipped(model):
        clip(model)
        steps.append(1)
        if len(steps) % 3 == 2:
            for parameter in model.parameters():
                parameter.grad /= 2

    run.clip = clipped


def stepping(run, after):
    """Let `after(parameter, state, group)` have its way with each parameter after each step."""
    step = run.optimizer.step

    def stepped():
        step()
        with torch.no_grad():
            for group in run.optimizer.param_groups:
                for parameter in group["params"]:
                    after(parameter, run.optimizer.state[parameter], group)

    run.optimizer.step = stepped


@fault("candle: AdamW moments in the dtype of the weights", PARITY)
def c10_moments_in_bfloat16(run):
    def rounded(parameter, state, group):
        for name in ("exp_avg", "exp_avg_sq"):
            state[name].copy_(state[name].bfloat16())

    stepping(run, rounded)


@fault("candle: optim.rs passes over what has no gradient", "gradient handed over")
def c11_optimizer_skips_what_has_no_gradient(run):
    accumulate = run.accumulate

    def losing(step, rank):
        accumulate(step, rank)
        run.model.blocks[0].gate.weight.grad = None  # AdamW passes over it in silence

    run.accumulate = losing


@fault("c12_tie_lost", "tied weights")
def c12_tie_lost(run):
    run.model.head.weight = nn.Parameter(run.model.embedding.weight.detach().clone())
    run.prepare()


@fault("pytorch#118115", "movement")
def c13_weights_that_are_not_contiguous_do_not_move(run):
    """An in-place update writes into a contiguous copy that nobody reads."""
    weight = run.model.blocks[0].q.weight
    weight.data = weight.data.T.contiguous().T
    step = run.optimizer.step

    def stepped():
        before = [(p, p.detach().clone()) for p in run.model.parameters() if not p.is_contiguous()]
        step()
        for parameter, value in before:
            parameter.data.copy_(value)

    run.optimizer.step = stepped


@fault("default betas", PARITY)
def c14_second_beta_left_at_its_default(run):
    group_options(run, betas=(BETAS[0], 0.999))


@fault("default weight decay", PARITY)
def c15_weight_decay_left_at_its_default(run):
    run.optimizer.param_groups[0]["weight_decay"] = 0.01


@fault("Adam for AdamW", PARITY)
def c16_decay_added_to_the_gradient(run):
    groups = run.optimizer.param_groups
    run.optimizer = torch.optim.Adam(
        [{key: group[key] for key in ("params", "weight_decay")} for group in groups], LEARNING_RATE, BETAS
    )


@fault("no bias correction", PARITY)
def c17_no_bias_correction(run):
    learning_rate = run.learning_rate

    def uncorrected(step):
        t = step + 1
        return learning_rate(step) * (1 - BETAS[0] ** t) / math.sqrt(1 - BETAS[1] ** t)

    run.learning_rate = uncorrected


@fault("pytorch#185382", PARITY)
def c18_wrong_from_the_third_step_on(run):
    def rolled(parameter, state, group):
        if int(state["step"]) >= 3:
            parameter.add_(state["exp_avg"], alpha=-float(group["lr"]))

    stepping(run, rolled)


@fault("pytorch#140066", "gradient handed over")
def c19_clip_misses_some_norms(run):
    def clipped(model):
        total = torch.stack([p.grad.norm() for p in model.parameters() if p.dim() == 1]).norm()
        for parameter in model.parameters():
            parameter.grad *= (CLIP_NORM / (total + 1e-6)).clamp(max=1)

    run.clip = clipped


@fault("clip after the step", "gradient handed over")
def c20_never_clipped(run):
    run.clip = lambda model: None


@fault("a group with a rate of its own", PARITY)
def c21_one_group_at_ten_times_the_rate(run):
    def faster(parameter, state, group):
        if parameter.dim() == 1:
            parameter.sub_(9 * group["lr"] * state["exp_avg"] / (state["exp_avg_sq"].sqrt() + 1e-8))

    stepping(run, faster)


@fault("a parameter listed twice", "optimizer coverage")
def c22_parameter_in_two_groups(run):
    twice = run.model.blocks[0].q.weight
    run.optimizer.param_groups.append({**run.optimizer.param_groups[1], "params": [twice]})


@fault("torchtitan#1261", PARITY)
def c23_warm_up_starts_one_step_late(run):
    run.learning_rate = lambda step: warmed_up(step - 1)


@fault("average never updated", "moving average")
def c24_average_never_updated(run):
    run.average_weights = lambda: None


@fault("average of the weights before the step", "moving average")
def c25_average_one_step_late(run):
    average, clip = run.average_weights, run.clip
    run.average_weights = lambda: None

    def clipped(model):
        average()
        clip(model)

    run.clip = clipped


@fault("decay and rate of the average exchanged", "moving average")
def c26_average_forgets_too_fast(run):
    def average():
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                run.ema[name].lerp_(parameter, 0.9)

    run.average_weights = average


@fault("decay applied by the program and by the optimizer", PARITY)
def c27_decayed_twice(run):
    def decayed(parameter, state, group):
        parameter.mul_(1 - group["lr"] * group["weight_decay"])

    stepping(run, decayed)


@fault("keller jordan: Muon is for matrices", PARITY)
def c28_declared_muon_is_plain_momentum(run):
    declared = run.declared.optimizer
    matrices = replace(declared.groups[1], parameters=("blocks.*",), algorithm="muon", momentum=0.95)
    groups = (declared.groups[0], matrices, declared.groups[1])
    run.declared = replace(run.declared, optimizer=replace(declared, groups=groups))


@fault("clip inside the loop of micro-batches", "gradient handed over", sound=sound(accumulation=2))
def c29_each_micro_batch_clipped_alone(run):
    def accumulate(step, rank):
        total = [torch.zeros_like(parameter) for parameter in run.model.parameters()]
        for part in run.micro_batches(step, rank):
            run.model.zero_grad()
            (run.loss(run.model, part) / run.accumulation).backward()
            nn.utils.clip_grad_norm_(run.model.parameters(), CLIP_NORM)
            for sum_, parameter in zip(total, run.model.parameters(), strict=True):
                sum_ += parameter.grad
        for sum_, parameter in zip(total, run.model.parameters(), strict=True):
            parameter.grad = sum_

    run.accumulate = accumulate
