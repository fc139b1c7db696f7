"""Training loops of other styles, healthy ones and their faults."""

from dataclasses import replace

import torch
from torch import nn

from faults.fault import fault, replaced_backward, sound
from faults.healthy import declare, healthy
from faults.model import HEADS, ROTARY_BASE, WIDTH
from faults.subject import ZooRun

CAP = 15.0


class MainGradients(torch.optim.AdamW):
    """Takes the gradients that the program has summed in `main_grad`, as Megatron does."""

    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = parameter.main_grad
        super().step()
        self.zero_grad()


@healthy
def gradients_summed_in_main_grad():
    run = ZooRun(accumulation=2)
    run.make_optimizer()
    groups = [{key: group[key] for key in ("params", "weight_decay")} for group in run.optimizer.param_groups]
    run.optimizer = MainGradients(groups, run.highest_rate, run.betas)
    clip = run.clip

    def clipped(model):
        clip(model)
        for parameter in model.parameters():
            parameter.main_grad, parameter.grad = parameter.grad, None

    run.clip = clipped
    return run


class SteppedInBackward:
    """One optimizer a tensor, stepped by a hook as soon as the gradient is there, which is freed at once."""

    def __init__(self, groups, rate, betas):
        self.each = {
            parameter: torch.optim.AdamW([parameter], rate, betas, weight_decay=group["weight_decay"])
            for group in groups
            for parameter in group["params"]
        }
        for parameter in self.each:
            parameter.register_post_accumulate_grad_hook(self.stepped)
        self.is_on = False

    def stepped(self, parameter):
        if self.is_on:
            self.each[parameter].step()
            parameter.grad = None

    @property
    def param_groups(self):
        return [group for one in self.each.values() for group in one.param_groups]

    def step(self):
        self.is_on = False

    def zero_grad(self):
        for one in self.each.values():
            one.zero_grad()

    def state_dict(self):
        return [one.state_dict() for one in self.each.values()]

    def load_state_dict(self, state):
        for one, saved in zip(self.each.values(), state, strict=True):
            one.load_state_dict(saved)


@healthy
def stepped_in_the_backward():
    run = ZooRun()
    declare(run, optimizer=replace(run.declared.optimizer, clip_norm=None))
    run.optimizer = SteppedInBackward(run.optimizer.param_groups, run.highest_rate, run.betas)
    run.clip = lambda model: None
    accumulate = run.accumulate

    def switched(step, rank):
        for group in run.optimizer.param_groups:
            group["lr"] = run.learning_rate(step)
        run.optimizer.is_on = True
        accumulate(step, rank)

    run.accumulate = switched
    return run


@healthy
def sharpness_aware():
    """The gradient is taken at weights that are moved uphill for it, and moved back."""
    run = ZooRun()
    declare(run, optimizer=None)
    accumulate = run.accumulate

    def twice(step, rank):
        accumulate(step, rank)
        moves = [(one, 0.02 * one.grad / one.grad.norm()) for one in run.model.parameters()]
        with torch.no_grad():
            for one, move in moves:
                one += move
        run.optimizer.zero_grad()
        accumulate(step, rank)
        with torch.no_grad():
            for one, move in moves:
                one -= move

    run.accumulate = twice
    return run


@healthy
def centralised_gradients():
    run = ZooRun()
    declare(run, optimizer=None)

    def centralise(model):
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.grad -= parameter.grad.mean(1, keepdim=True)

    run.clip = centralise
    return run


def capped(forgets: bool) -> ZooRun:
    """A soft cap over logits that are tiny at first, as in Gemma and nanochat."""
    run = ZooRun(tied=False)
    nn.init.normal_(run.model.head.weight, std=1e-3)

    def backward(gradient, x):
        bend = 0.0 if forgets else torch.tanh(x / CAP).square()
        return (gradient * (1 - bend),)

    run.model.operations.logits_out = replaced_backward(lambda x: CAP * torch.tanh(x / CAP), backward)
    run.reference = None
    return run


@healthy
def soft_cap_over_tiny_logits():
    return capped(forgets=False)


@fault(
    "nanochat: a soft cap fused into the loss",
    "gradient values",
    sound=lambda: capped(False),
    where=("head.weight",),
)
def b29_soft_cap_without_its_bend(run):
    run.model.operations.logits_out = capped(True).model.operations.logits_out


@fault("nanoGPT: loss / accumulation", "gradient handed over", sound=sound(accumulation=2))
def c31_micro_batches_summed_under_a_clip(run):
    """Every gradient is clipped, so that its length before shows in no update."""

    def accumulate(step, rank):
        for part in run.micro_batches(step, rank):
            run.loss(run.model, part).backward()

    run.accumulate = accumulate
    clip = 1e-3
    declare(run, optimizer=replace(run.declared.optimizer, clip_norm=clip))
    run.clip = lambda model: nn.utils.clip_grad_norm_(model.parameters(), clip)


@fault("a sampler with replacement", "repetition")
def d25_rows_drawn_with_replacement(run):
    def order(epoch):
        count = len(ZooRun.order(run, 0))
        return torch.randint(count, (count,), generator=torch.Generator().manual_seed(epoch))

    run.order = order


@fault("rotary angles in half precision", "table precision")
def f24_angles_of_given_positions_in_bfloat16(run):
    """The positions come with the batch, so that no table is made of constants alone."""
    collate, forward, given = run.collate, run.forward, {}

    def with_positions(ids, documents):
        positions = torch.arange(ids.shape[1]).expand_as(ids)
        return collate(ids, documents) | {"position_ids": positions}

    def forwarded(model, batch):
        given["positions"] = batch["position_ids"]
        return forward(model, batch)

    def angles(documents):
        half = WIDTH // HEADS // 2
        turns = given["positions"][:, None, :, None] * ROTARY_BASE ** (-torch.arange(half) / half)
        return turns.bfloat16().float()

    run.collate, run.forward, run.model.operations.angles = with_positions, forwarded, angles
