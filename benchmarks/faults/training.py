"""Healthy ways to train that are not plain AdamW in float32, and healthy models that are not plain."""

from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from faults.healthy import declare, healthy, prepared, undecayed
from faults.model import WIDTH
from faults.subject import BETAS, CLIP_NORM, LEARNING_RATE, WEIGHT_DECAY, ZooRun, warmed_up
from mothertongue_arbiter.declared_optimizer import Group, Optimizer


def believe(run: ZooRun, *groups: Group, **facts) -> None:
    facts.setdefault("clip_norm", CLIP_NORM)
    declare(run, optimizer=Optimizer(groups=groups, **facts))


@healthy
def stochastic_gradient_descent():
    run = ZooRun()
    run.optimizer = torch.optim.SGD(run.model.parameters(), 0.1, momentum=0.9, nesterov=True)
    run.learning_rate = lambda step: 0.1
    believe(run, Group(parameters=("*",), algorithm="sgd", learning_rate=0.1, momentum=0.9, nesterov=True))
    return run


@healthy
def adam_with_decay_on_the_gradient():
    run = ZooRun()
    run.optimizer = torch.optim.Adam(run.model.parameters(), LEARNING_RATE, BETAS, weight_decay=0.01)
    believe(
        run,
        Group(parameters=("*",), algorithm="adam", learning_rate=warmed_up, betas=BETAS, weight_decay=0.01),
    )
    declare(run, no_weight_decay=())
    return run


class Both:
    """Two optimizers that step as one."""

    def __init__(self, *optimizers: torch.optim.Optimizer) -> None:
        self.optimizers = optimizers

    @property
    def param_groups(self):
        return [group for optimizer in self.optimizers for group in optimizer.param_groups]

    def zero_grad(self):
        for optimizer in self.optimizers:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.optimizers:
            optimizer.step()

    def state_dict(self):
        return [optimizer.state_dict() for optimizer in self.optimizers]

    def load_state_dict(self, states):
        for optimizer, state in zip(self.optimizers, states, strict=True):
            optimizer.load_state_dict(state)


@healthy
def muon_for_the_matrices():
    run = ZooRun()
    inner = [p for p in run.model.blocks.parameters() if p.dim() == 2]
    rest = [p for p in run.model.parameters() if all(p is not one for one in inner)]
    run.optimizer = Both(
        torch.optim.Muon(inner, LEARNING_RATE, weight_decay=0.0, momentum=0.95, nesterov=True),
        torch.optim.AdamW(rest, LEARNING_RATE, BETAS, weight_decay=0.0),
    )
    believe(
        run,
        Group(parameters=("*norm", "embedding.*"), learning_rate=warmed_up, betas=BETAS),
        Group(
            parameters=("blocks.*",),
            algorithm="muon",
            learning_rate=warmed_up,
            momentum=0.95,
            nesterov=True,
        ),
    )
    return run


@healthy
def gradient_scaler_that_skips_its_first_step():
    run = ZooRun()
    run.scale = 2.0**16
    sound = run.clip

    def unscaled(model):
        for parameter in model.parameters():
            parameter.grad /= run.scale
        sound(model)

    def accumulate(step, rank):
        (run.loss(run.model, run.batch(step)) * run.scale).backward()

    def train_step(step):
        run.optimizer.zero_grad()
        run.accumulate(step, 0)
        run.clip(run.model)
        for group in run.optimizer.param_groups:
            group["lr"] = run.learning_rate(step)
        if step > 0:  # the first gradient overflows in float16, and its step is skipped
            run.optimizer.step()
        run.average_weights()
        run.steps_taken += 1

    run.clip, run.accumulate, run.train_step = unscaled, accumulate, train_step
    declare(run, warmup_steps=1, optimizer=None)
    return run


@healthy
def sparse_embedding():
    run = ZooRun(tied=False)
    run.model.operations.embed = lambda ids, weight: F.embedding(ids, weight, sparse=True)
    dense = [p for p in run.model.parameters() if p is not run.model.embedding.weight]
    run.optimizer = Both(
        torch.optim.SparseAdam([run.model.embedding.weight], LEARNING_RATE, BETAS),
        torch.optim.AdamW(dense, LEARNING_RATE, BETAS, weight_decay=0.0),
    )
    run.clip = lambda model: None
    declare(run, optimizer=None)
    return run


@healthy
def soft_capped_logits():
    run = ZooRun()
    run.model.operations.logits_out = lambda x: 5 * torch.tanh(x / 5)
    run.reference = None
    return run


@healthy
def straight_through_as_declared():
    run = ZooRun(tied=False)
    run.model.operations.heads_out = lambda x: x + ((x * 8).round() / 8 - x).detach()
    upstream = ("embedding.weight", "blocks.0.*", "blocks.1.attention_norm", "blocks.1.[qkv].weight")
    declare(run, straight_through=upstream)
    run.reference = None
    return run


@healthy
def stopped_gradient_as_declared():
    run = ZooRun(tied=False)
    run.model.operations.between_layers = lambda x: x.detach()
    declare(run, stop_gradients=("embedding.weight", "blocks.0.*"))
    return run


@healthy
def scaled_gradient_as_declared():
    run = ZooRun(tied=False)
    run.model.embedding.weight.register_hook(lambda g: g * 0.1)
    declare(run, gradient_scale={"embedding.weight": 0.1})
    return run


@healthy
def parameter_used_in_every_second_step():
    run = ZooRun()
    run.model.extra = nn.Parameter(torch.full((WIDTH,), 0.01))
    cross_entropy = run.cross_entropy

    def now_and_then(model, batch):
        used = int(batch["input_ids"][0, 0]) % 2 == 0
        model.operations.hidden_out = (lambda x: x + model.extra) if used else (lambda x: x)
        return cross_entropy(model, batch)

    run.cross_entropy = now_and_then
    declare(run, conditional=("extra",), no_weight_decay=("*norm", "extra"))
    undecayed(run, "extra")
    run.reference = None
    run.prepare()
    return run


class ValueEmbeddings(nn.Module):
    """An embedding that joins the hidden state of the second layer only."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(48, WIDTH)
        nn.init.zeros_(self.table.weight)


@healthy
def value_embedding_in_one_layer():
    run = ZooRun()
    run.model.value = ValueEmbeddings()
    embed = run.model.operations.embed
    seen = {}

    def keep(ids, weight):
        seen["ids"] = ids
        return embed(ids, weight)

    run.model.operations.embed = keep
    run.model.operations.between_layers = lambda x: x + run.model.value.table(seen["ids"])
    run.reference = None
    run.prepare()
    return run


@healthy
def query_key_norm():
    run = ZooRun()
    rope = run.model.operations.rope
    run.model.operations.rope = lambda x, angle: rope(F.rms_norm(x, x.shape[-1:]), angle)
    run.reference = None
    return run


@healthy
def two_shared_layers_as_declared():
    run = ZooRun()
    run.model.blocks[1] = run.model.blocks[0]
    declare(run, tied=(*run.declared.tied, ("blocks.0.q.weight", "blocks.1.q.weight")))
    return prepared(run)


@healthy
def one_token_rows():
    """Rows of two tokens, of which one can be learned: attention has nothing to choose."""
    run = ZooRun()
    batch = run.batch

    def short(step):
        found = batch(step)
        read = {name: value[:, :2].contiguous() for name, value in found.items()}
        return read | {"targets": run.targets(read)}

    run.batch = short
    run.documents = lambda step, rank: run.batch(step)["documents"]
    declare(run, conditional=("blocks.*.q.weight", "blocks.*.k.weight"))  # one token to choose from
    run.eval_batches = run.evaluate = None
    return run


@healthy
def value_clipping_as_declared():
    run = ZooRun()
    run.clip = lambda model: nn.utils.clip_grad_value_(model.parameters(), 1e-2)
    believed = run.declared.optimizer
    declare(run, optimizer=replace(believed, clip_norm=None, clip_value=1e-2))
    return run


@healthy
def no_clipping():
    run = ZooRun()
    run.clip = lambda model: None
    declare(run, optimizer=replace(run.declared.optimizer, clip_norm=None))
    return run


@healthy
def master_weights_of_a_bfloat16_model():
    run = ZooRun()
    masters = {name: nn.Parameter(p.detach().clone()) for name, p in run.model.named_parameters()}
    run.model.to(torch.bfloat16)
    matrices = [p for p in masters.values() if p.dim() == 2]
    gains = [p for p in masters.values() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": gains, "weight_decay": 0.0}]
    run.optimizer = torch.optim.AdamW(groups, LEARNING_RATE, BETAS)
    step, checkpoint, resume = run.optimizer.step, run.checkpoint, run.resume

    def stepped():
        for name, parameter in run.model.named_parameters():
            masters[name].grad = parameter.grad.float()
        step()
        with torch.no_grad():
            for name, parameter in run.model.named_parameters():
                parameter.copy_(masters[name])
        run.model.zero_grad()

    def resumed(state):
        resume(state)
        with torch.no_grad():
            for name, value in state["masters"].items():
                masters[name].copy_(value)

    run.optimizer.step, run.resume = stepped, resumed
    run.checkpoint = lambda: checkpoint() | {"masters": {n: p.detach().clone() for n, p in masters.items()}}
    believed = replace(run.declared.optimizer, master_dtype="float32")
    declare(run, dtypes={"*": "bfloat16"}, optimizer=believed)
    return run
