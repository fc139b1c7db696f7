"""Family f: autograd differentiates faithfully a model that is not the declared one."""

import torch
from torch.nn import functional as F

from faults.fault import fault, sound
from faults.model import HEADS, KV_HEADS, ROTARY_BASE, TOKENS, WIDTH, causal_mask, rms_norm, rotate

REFERENCE = "reference forward"


def interleaved(x, angle):
    """Rotate neighbouring dimensions, as GPT-J does, with the same frequencies."""
    one, two = x[..., ::2], x[..., 1::2]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    return torch.stack([one * cos - two * sin, two * cos + one * sin], dim=-1).flatten(-2)


@fault("olmo-core#685", "position shift")
def f1_rope_of_q_in_halves_and_of_k_interleaved(run):
    run.model.operations.rope = lambda x, angle: (
        rotate(x, angle) if x.shape[1] == HEADS else interleaved(x, angle)
    )


@fault("f: initialisation", "initial loss")
def f2_initialised_too_large(run):
    with torch.no_grad():
        run.model.embedding.weight.mul_(12)


@fault("f5_batch_mixing", "independent rows")
def f3_normalised_over_the_batch(run):
    run.model.operations.norm = lambda x, gain: (
        x * torch.rsqrt(x.square().mean((0, -1), keepdim=True) + 1e-6) * gain
    )


@fault("burn#5122", "independent rows")
def f4_later_rows_wrong(run):
    run.model.operations.block_out = lambda x: torch.cat([x[:1], x[1:] + 1e-2 * x[:-1]])


@fault("f: attention scale", REFERENCE, needs_reference=True)
def f5_no_attention_scale(run):
    run.model.operations.score = lambda q, k: q @ k.transpose(-1, -2)


@fault("transformers#25681", "table precision")
def f6_rotary_table_in_bfloat16(run):
    """Positions beyond a few hundred become one."""
    angles = run.model.operations.angles
    run.model.operations.angles = lambda documents: (
        (angles(documents).bfloat16() * 100).bfloat16().float() / 100
    )


@fault("megatron#535", "position shift")
def f7_positions_capped(run):
    angles = run.model.operations.angles
    run.model.operations.angles = lambda documents: angles(documents).clamp(max=float(TOKENS // 2))


@fault("f: no positions", "positions used")
def f8_no_positions_at_all(run):
    run.model.operations.rope = lambda x, angle: x


@fault("coreai-models#66", "position shift")
def f9_only_queries_are_rotated(run):
    run.model.operations.rope = lambda x, angle: rotate(x, angle) if x.shape[1] == HEADS else x


@fault("f: rotary base", REFERENCE, needs_reference=True)
def f10_wrong_rotary_base(run):
    half = WIDTH // HEADS // 2
    frequency = (ROTARY_BASE / 2) ** (-torch.arange(half, dtype=torch.float32) / half)
    run.model.operations.angles = lambda documents: (
        torch.arange(documents.shape[1], dtype=torch.float32)[:, None] * frequency
    )


@fault("f: activation", REFERENCE, needs_reference=True)
def f11_another_activation(run):
    run.model.operations.gate = F.gelu


@fault("f: residual", REFERENCE, needs_reference=True)
def f12_residual_scaled(run):
    run.model.operations.residual = lambda x, change: x + 0.5 * change


@fault("f: a mean over the row", "causality")
def f13_later_tokens_leak_through_a_mean(run):
    run.model.operations.hidden_out = lambda x: x + 1e-3 * x.mean(1, keepdim=True)


@fault("f: grouped heads", REFERENCE, needs_reference=True)
def f14_heads_share_the_wrong_keys(run):
    run.model.operations.repeat = lambda x: x.repeat(1, HEADS // KV_HEADS, 1, 1)


@fault("f: a kernel reads past the end of its row", "independent rows")
def f15_first_token_sees_the_row_before(run):
    def reading(x):
        flat = x.reshape(-1, x.shape[-1])
        before = torch.cat([torch.zeros_like(flat[:1]), flat[:-1]])
        starts = (torch.arange(len(flat)) % x.shape[1] == 0)[:, None]
        return (flat + 1e-2 * before * starts).view_as(x)

    run.model.operations.block_out = reading


@fault("f: one token of a causal kernel", "causality")
def f16_last_block_of_keys_unmasked(run):
    def mask(documents):
        allowed = causal_mask(documents).clone()
        allowed[:, :, -2, -1] = documents[:, None, -2] == documents[:, None, -1]
        return allowed

    run.model.operations.mask = mask


@fault("transformers#35913", "initial loss")
def f17_missing_key_left_unwritten(run):
    with torch.no_grad():
        run.model.norm.copy_(torch.randn(WIDTH, generator=torch.Generator().manual_seed(3)) * 40)


@fault("[Block()] * n", "tied weights")
def f18_two_layers_are_one(run):
    run.model.blocks[1] = run.model.blocks[0]
    run.prepare()


@fault("uni-d2#6", "positions used", sound=sound(learned_positions=True))
def f19_all_positions_are_one(run):
    run.model.operations.positions = torch.zeros_like


@fault("f: epsilon outside the root", REFERENCE, needs_reference=True)
def f20_norm_with_another_epsilon(run):
    run.model.operations.norm = lambda x, gain: x / (x.square().mean(-1, keepdim=True).sqrt() + 1e-2) * gain


@fault("f: attention sees nothing", "token influence")
def f21_attention_sees_only_its_own_token(run):
    def mask(documents):
        length = documents.shape[1]
        return torch.eye(length, dtype=torch.bool).expand(len(documents), 1, length, length)

    run.model.operations.mask = mask


@fault("f: a norm over the wrong dimension", "causality")
def f22_normalised_over_positions(run):
    """Each norm is taken over positions: a later token changes an earlier one."""
    run.model.operations.norm = lambda x, gain: rms_norm(x.mT, torch.ones(())).mT * gain
