"""Family a: some parameter gets no gradient, though the loss depends on it."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from faults.fault import fault, replaced_backward, sound
from faults.loss import count, sum_of_cross_entropy
from faults.model import rms_norm, rotate

GAINS = ("norm", "*_norm")
SCORES = ("blocks.1.[qk].weight",)


@fault("candle#2168", "gradient presence", where=GAINS)
def a1_rms_norm_without_backward(run):
    run.model.operations.norm = lambda x, gain: rms_norm(x, gain).detach()


@fault("candle#2168", "gradient presence", where=("blocks.1.*_norm",))
def a2_block_norms_without_backward(run):
    final = run.model.norm
    run.model.operations.norm = lambda x, gain: (
        rms_norm(x, gain) if gain is final else rms_norm(x, gain).detach()
    )


@fault("candle#2977", "gradient presence", where=GAINS)
def a3_layer_norm_without_backward(run):
    run.model.operations.norm = lambda x, gain: F.layer_norm(x, x.shape[-1:], gain).detach()


@fault("candle#3569", "gradient presence", where=SCORES)
def a4_softmax_without_backward(run):
    run.model.operations.softmax = lambda scores: scores.softmax(-1).detach()


@fault("candle#3568", "gradient presence", where=SCORES)
def a5_rope_without_backward(run):
    run.model.operations.rope = lambda x, angle: rotate(x, angle).detach()


@fault("a5_detach_between_layers", "gradient presence", sound=sound(tied=False), where=("blocks.0.*",))
def a6_detach_between_layers(run):
    run.model.operations.between_layers = lambda x: x.detach()


@fault("entrenar#257", "gradient presence", where=GAINS)
def a7_norm_gain_without_gradient(run):
    run.model.operations.norm = lambda x, gain: rms_norm(x, gain.detach())


@fault("unsloth#1282", "gradient presence", "optimizer coverage", where=("blocks.1.*",))
def a8_frozen_by_mistake(run):
    run.model.blocks[1].requires_grad_(False)


@fault("pytorch#36923", "finiteness")
def a9_nan_from_the_untaken_branch(run):
    run.model.operations.block_out = lambda x: torch.where(x.abs() >= 0, x, (x - x).sqrt())


@fault("verl#7235", "gradient presence", sound=sound(tied=False), where=("norm",))
def a10_fused_loss_trains_only_the_head(run):
    run.model.operations.hidden_out = lambda x: x.detach()


@fault("candle: Op::Round has no gradient", "reference forward", where=("blocks.1.[kv].weight",))
def a11_rounding_without_straight_through(run):
    run.model.operations.heads_out = lambda x: (x * 64).round() / 64


@fault("transformers#42489", "gradient presence", where=("blocks.*",))
def a12_reentrant_checkpoint_of_a_frozen_input(run):
    run.model.embedding.requires_grad_(False)
    run.model.head.weight = torch.nn.Parameter(run.model.head.weight.detach().clone())
    run.declared = run.declared.__class__(
        **vars(run.declared) | {"frozen": ("embedding.weight",), "tied": ()}
    )
    run.model.run_block = lambda block, *inputs: checkpoint(block, *inputs, use_reentrant=True)
    run.prepare()


@fault("pytorch#182012", "gradient presence", where=("blocks.1.v.weight",))
def a13_slice_scatter_loses_its_input(run):
    def backward(gradient, x):
        return torch.zeros_like(gradient)

    run.model.operations.heads_out = replaced_backward(lambda x: x * 1, backward)


@fault("unsloth#5230", "gradient presence")
def a14_loss_of_another_path(run):
    """The number that is differentiated comes from detached logits, but for a zero."""

    def loss(model, batch):
        logits = run.forward(model, batch)
        value = sum_of_cross_entropy(logits.detach(), batch["targets"]) / count(batch)
        return value + 0 * logits.sum()

    run.loss = loss


@fault("pytorch#182012", "dead elements", where=("blocks.0.down.weight",))
def a15_half_of_the_rows_dead(run):
    weight = run.model.blocks[0].down.weight
    alive = (torch.arange(len(weight)) % 2 == 0)[:, None]
    weight.register_hook(lambda g: g * alive)


@fault(
    "torch.nn.Embedding(padding_idx)", "dead elements", sound=sound(tied=False), where=("embedding.weight",)
)
def a16_padding_index_is_a_letter(run):
    letter = int(run.batch(0)["input_ids"][0, 0])
    run.model.operations.embed = lambda ids, weight: F.embedding(ids, weight, padding_idx=letter)
