"""Family b: the gradient is there, and it is not the derivative of the loss."""

import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from faults.fault import altered_gradient, fault, replaced_backward, sound
from faults.loss import count, sum_of_cross_entropy
from faults.model import HEADS, KV_HEADS, rms_norm, rotate, score

SCORES = ("blocks.1.[qk].weight",)
GATE = ("blocks.1.gate.weight",)


@fault("burn: grouped heads", "gradient values", where=("blocks.1.[kv].weight",))
def b1_grouped_heads_drop_the_sum(run):
    group = HEADS // KV_HEADS
    run.model.operations.repeat = replaced_backward(
        lambda x: x.repeat_interleave(group, dim=1), lambda g, x: (g[:, ::group],)
    )


@fault("b2_rope_bwd_sin_sign", "gradient values", where=SCORES)
def b2_rope_backward_with_the_wrong_sign(run):
    run.model.operations.rope = replaced_backward(rotate, lambda g, x, angle: (rotate(g, angle), None))


@fault("b3_rmsnorm_bwd_no_projection", "gradient values", where=("norm", "blocks.1.down.weight"))
def b3_rms_norm_backward_without_projection(run):
    def backward(g, x, gain):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return g * gain * scale, (g * x * scale).flatten(0, -2).sum(0)

    run.model.operations.norm = replaced_backward(rms_norm, backward)


@fault("burn#4596", "gradient values", where=GATE)
def b4_gate_backward_forgets_a_term(run):
    run.model.operations.gate = replaced_backward(F.silu, lambda g, x: (g * x.sigmoid(),))


@fault("burn#702", "gradient values", where=("norm", "*_norm"))
def b5_broadcast_backward_takes_the_mean(run):
    def gain_of(gain, x):
        return replaced_backward(lambda one: one.expand(x.shape), lambda g, one: (g.mean((0, 1)),))(gain)

    run.model.operations.norm = lambda x, gain: rms_norm(x, torch.ones_like(gain)) * gain_of(gain, x)


@fault("b6_weight_grads_x0p5", "gradient values", where=("blocks.1.up.weight",))
def b6_weight_gradients_halved(run):
    for block in run.model.blocks:
        block.up.weight.register_hook(lambda g: g * 0.5)


@fault("burn#4063", "gradient values", where=("embedding.weight",))
def b7_scatter_overwrites(run):
    def backward(gradient, ids, weight):
        found = torch.zeros_like(weight)
        found[ids.flatten()] = gradient.flatten(0, 1)  # the last of several equal tokens wins
        return None, found

    run.model.operations.embed = replaced_backward(F.embedding, backward)


@fault("burn#5079", "gradient values", where=("blocks.1.[kv].weight",))
def b8_one_head_scaled(run):
    scale = torch.tensor([0.5] + [1.0] * (HEADS - 1)).view(1, HEADS, 1, 1)
    run.model.operations.heads_out = altered_gradient(lambda x: x * 1, lambda g: g * scale)


@fault("burn#1225", "gradient values", where=("blocks.1.down.weight", "norm"))
def b9_power_backward_without_its_exponent(run):
    root = replaced_backward(lambda x: x**-0.5, lambda g, x: (g * -(x**-1.5),))
    run.model.operations.norm = lambda x, gain: x * root(x.square().mean(-1, keepdim=True) + 1e-6) * gain


@fault("candle#2337", "gradient values", where=("blocks.1.o.weight",))
def b10_swapped_arguments_in_a_backward(run):
    run.model.blocks[1].o.weight.register_hook(lambda g: g.T.contiguous())


@fault("b11_stale_grad_one_step_late", "gradient values", where=("blocks.0.v.weight",))
def b11_gradient_of_the_step_before(run):
    last = {}

    def late(g):
        given = last.get("g", torch.zeros_like(g)).to(g.dtype)
        last["g"] = g.detach().clone()
        return given

    run.model.blocks[0].v.weight.register_hook(late)


@fault("pytorch#153957", "own precision", where=GATE)
def b12_wrong_only_in_the_training_precision(run):
    run.model.operations.gate = replaced_backward(
        F.silu,
        lambda g, x: (g * x.sigmoid() * (1 + (x * (1 - x.sigmoid()) if x.dtype == torch.float64 else 0)),),
    )


@fault("deepspeed#5545", "same step twice")
def b13_every_second_backward_loses_a_row(run):
    calls = []

    def racing(g):
        calls.append(1)
        g = g.clone()
        g[0] *= len(calls) % 2
        return g

    run.model.blocks[1].up.weight.register_hook(racing)


@fault("triton#4541", "gradient values", where=SCORES)
def b14_softmax_backward_forgets_the_mask(run):
    def backward(g, scores):
        weights = scores.clamp(min=-4).softmax(-1)  # as if nothing were masked
        return (weights * (g - (g * weights).sum(-1, keepdim=True)),)

    run.model.operations.softmax = replaced_backward(lambda scores: scores.softmax(-1), backward)


@fault("burn: softmax backward", "gradient values", where=SCORES)
def b15_softmax_backward_without_its_sum(run):
    run.model.operations.softmax = replaced_backward(
        lambda scores: scores.softmax(-1), lambda g, scores: (g * scores.softmax(-1),)
    )


@fault("pytorch#193061", "gradient values", where=("blocks.1.[kv].weight",))
def b16_stale_slice_of_a_buffer(run):
    """A compiled backward writes half of its buffer; the rest holds what the last call left there."""
    buffer = {}

    def backward(g, x):
        left = buffer.get("g", torch.zeros_like(g)).to(g.dtype)
        buffer["g"] = g.detach().clone()
        half = g.shape[-1] // 2
        stale = left[..., half:] if left.shape == g.shape else torch.zeros_like(g[..., half:])
        return (torch.cat([g[..., :half], stale], dim=-1),)

    run.model.operations.heads_out = replaced_backward(lambda x: x * 1, backward)


@fault("flash-attention#2623", "gradient values", where=SCORES)
def b17_query_gradient_150_times_too_large(run):
    run.model.operations.score = altered_gradient(score, lambda g: g * 150)


@fault("pytorch#177116", "gradient values", where=GATE)
def b18_wrong_beyond_a_number_of_elements(run):
    def alter(g):
        return torch.where(torch.arange(g.numel()).view(g.shape) < 2048, g, 0)

    run.model.operations.gate = altered_gradient(F.silu, alter)


@fault("liger#1298", "gradient values", "labels", where=("norm",))
def b19_each_token_gets_the_gradient_of_token_0(run):
    """The first token of a row is ignored here, so that the rest of its row learns nothing."""

    def loss(model, batch):
        targets = batch["targets"].clone()
        targets[1, 0] = -100
        logits = run.forward(model, batch)
        first = (targets[:, :1] >= 0).to(logits.dtype)[..., None]
        fused = altered_gradient(lambda x: x * 1, lambda g: g * first)
        return sum_of_cross_entropy(fused(logits), targets) / (targets >= 0).sum()

    run.loss = loss


@fault("candle: CANDLE_GRAD_DO_NOT_DETACH", "gradient values")
def b20_penalty_without_second_order(run):
    def loss(model, batch):
        with torch.enable_grad():
            hidden = model.embedding.weight
            plain = sum_of_cross_entropy(run.forward(model, batch), batch["targets"]) / count(batch)
            (slope,) = torch.autograd.grad(plain, hidden, retain_graph=True, create_graph=False)
        return plain + 10 * slope.square().sum()

    run.declared = run.declared.__class__(**vars(run.declared) | {"normalisation": "other"})
    run.loss = loss


@fault(
    "automodel#2995", "gradient values", sound=sound(mixture=True), where=("blocks.1.mixture.router.weight",)
)
def b21_router_learns_from_its_auxiliary_loss_only(run):
    run.model.operations.combine = lambda probabilities, out: probabilities.detach()[..., None] * out


@fault("gemma: final_logit_softcapping", "gradient values", where=("embedding.weight", "norm"))
def b22_soft_cap_without_its_slope(run):
    capped = replaced_backward(lambda x: 2 * torch.tanh(x / 2), lambda g, x: (g,))
    run.model.operations.logits_out = capped
    run.reference = None


@fault("ml-cross-entropy#14", "gradient values", where=("norm", "embedding.weight"))
def b23_small_gradients_filtered(run):
    def alter(g):
        return g * (g.abs() > g.abs().max() / 40)

    run.model.operations.logits_out = altered_gradient(lambda x: x * 1, alter)


@fault("gradient clipping inside backward", "gradient values", where=("blocks.0.*", "embedding.weight"))
def b24_clipped_inside_backward(run):
    run.model.operations.between_layers = altered_gradient(
        lambda x: x * 1, lambda g: g.clamp(-float(g.std()), float(g.std()))
    )


@fault("torch.utils.checkpoint", "gradient values", sound=sound(dropout=0.2))
def b25_recomputed_with_another_dropout(run):
    run.model.run_block = lambda block, *inputs: checkpoint(
        block, *inputs, use_reentrant=False, preserve_rng_state=False
    )


@fault("torch.nn.Embedding(scale_grad_by_freq)", "gradient values", where=("embedding.weight",))
def b26_gradient_scaled_by_frequency(run):
    run.model.operations.embed = lambda ids, weight: F.embedding(ids, weight, scale_grad_by_freq=True)


@fault("research b10: residual", "gradient values", where=("blocks.0.*", "blocks.1.*"))
def b27_residual_gradient_halved(run):
    run.model.operations.residual = lambda x, change: x * 0.5 + x.detach() * 0.5 + change


@fault("flash-attention#1915", "gradient values", where=SCORES)
def b28_backward_of_another_mask(run):
    """The backward leaves out the diagonal, which the forward has."""

    def backward(g, scores):
        below = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)
        weights = scores.softmax(-1)
        return (weights * (g - (g * weights).sum(-1, keepdim=True)) * below,)

    run.model.operations.softmax = replaced_backward(lambda scores: scores.softmax(-1), backward)
