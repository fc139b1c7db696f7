"""The JAX adapter as a whole. Its model is a small causal transformer by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mothertongue_arbiter import ArbiterError, Declared, Verdict
from mothertongue_arbiter.jax import audit_jax

VOCABULARY, WIDTH, HEADS, FFN = 32, 16, 2, 24


def parameters(seed=0, dtype=np.float32):
    rng = np.random.default_rng(seed)

    def matrix(rows, columns):
        return jnp.asarray(rng.normal(0, 0.2, (rows, columns)), dtype=dtype)

    def block():
        return {
            "norm": jnp.ones(WIDTH, dtype), "ffn_norm": jnp.ones(WIDTH, dtype),
            **{name: matrix(WIDTH, WIDTH) for name in "qkvo"},
            "up": matrix(WIDTH, FFN), "gate": matrix(WIDTH, FFN), "down": matrix(FFN, WIDTH),
        }  # fmt: skip

    return {
        "embedding": matrix(VOCABULARY, WIDTH),
        "blocks": [block(), block()],
        "norm": jnp.ones(WIDTH, dtype),
    }


def batch(seed=0):
    return {"tokens": np.random.default_rng(seed).integers(0, VOCABULARY, (3, 9))}


def rms_norm(x, gain):
    return x / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * gain


def severed_norm(x, gain):
    return x * jax.lax.stop_gradient(1 / jnp.sqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)) * gain


def severed_gain(x, gain):
    return rms_norm(x, jax.lax.stop_gradient(gain))


def single_norm(x, gain):
    return rms_norm(x.astype(jnp.float32), gain.astype(jnp.float32)).astype(x.dtype)


def square(factor):
    """x^2 with a backward that a hand wrote; the right factor is 2."""

    @jax.custom_vjp
    def op(x):
        return x * x

    op.defvjp(lambda x: (x * x, x), lambda x, up: (factor * x * up,))
    return op


def causal(scores):
    length = scores.shape[-1]
    return jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)


def program(norm=rms_norm, op=lambda x: x * x, mask=causal, across=lambda x: x):
    """Return loss(params, batch) and forward(params, batch) of the transformer."""

    def attention(p, x):
        B, T, _ = x.shape
        q, k, v = ((x @ p[name]).reshape(B, T, HEADS, -1).swapaxes(1, 2) for name in "qkv")
        weights = jax.nn.softmax(mask(q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH / HEADS)))
        return (weights @ v).swapaxes(1, 2).reshape(B, T, WIDTH) @ p["o"]

    def forward(params, batch):
        ids = batch["tokens"]
        angle = jnp.arange(ids.shape[1], dtype=jnp.float32)[:, None] / (1 + jnp.arange(WIDTH))
        x = params["embedding"][ids] + 0.1 * jnp.sin(angle)
        for p in params["blocks"]:
            x = x + attention(p, norm(x, p["norm"]))
            h = norm(x, p["ffn_norm"])
            x = across(x + (op(h @ p["gate"]) * (h @ p["up"])) @ p["down"])
        return norm(x, params["norm"]) @ params["embedding"].T

    def loss(params, batch):
        logits = forward(params, batch)[:, :-1]
        labels = batch["tokens"][:, 1:]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[..., None], -1).mean()

    return loss, forward


def certificate(*, jit=False, declared=None, gradients=None, **parts):
    loss, forward = program(**parts)
    given = jax.jit(loss) if jit else loss
    return audit_jax(
        given, parameters(), batch(), forward=forward, declared=declared, gradients=gradients,
        random_directions=1,
    )  # fmt: skip


def check(certificate, name):
    return next(one for one in certificate.checks if one.name == name)


def test_a_sound_transformer_passes_every_check():
    sound = certificate()
    assert sound.verdict == Verdict.PASS, sound.checks
    assert len(sound.checks) == 8
    assert sound.dtypes["blocks.1.ffn_norm"] == "float32"  # as the program has it


def test_float64_is_gone_after_the_audit():
    certificate()
    assert jnp.asarray(np.ones(2)).dtype == jnp.float32


def test_a_gain_cut_off_from_its_gradient_is_severed_and_named_by_use_also_inside_jit():
    presence = check(certificate(norm=severed_gain, jit=True), "gradient presence")
    assert presence.verdict == Verdict.FAIL
    severed = [finding.subject for finding in presence.findings]
    assert severed[0] == "norm"  # nearest the loss
    assert set(severed) == {
        "norm",
        *(f"blocks.{i}.{name}" for i in range(2) for name in ("norm", "ffn_norm")),
    }


@pytest.mark.parametrize("parts", [{"norm": severed_norm}, {"op": square(-2.0)}, {"op": square(2.002)}])
def test_a_wrong_backward_is_wrong(parts):
    values = check(certificate(**parts), "gradient values")
    assert values.verdict == Verdict.FAIL
    assert "a wrong backward" in values.cause


def test_a_right_backward_by_hand_passes():
    assert certificate(op=square(2.0)).verdict == Verdict.PASS


def test_only_tensors_before_a_wrong_backward_are_named():
    wrong = check(certificate(op=square(1.0)), "gradient values").findings
    names = [finding.subject for finding in wrong]
    assert "blocks.1.gate" in names
    assert not {"norm", "blocks.1.down", "blocks.1.up"} & set(names)


def test_a_declared_stop_gradient_passes_and_an_unmatched_declaration_is_noted():
    gains = ("*norm",)
    declared = certificate(norm=severed_gain, declared=Declared(stop_gradients=(*gains, "*router")))
    assert declared.verdict == Verdict.PASS, declared.checks
    assert declared.notes == ("declared.stop_gradients: no parameter is called '*router'",)


def test_the_gradient_of_the_program_itself_is_what_is_judged():
    loss, _ = program()

    def halved(params, batch):
        return jax.tree_util.tree_map(lambda gradient: gradient / 2, jax.grad(loss)(params, batch))

    assert certificate(gradients=jax.grad(loss)).verdict == Verdict.PASS
    assert check(certificate(gradients=halved), "gradient values").verdict == Verdict.FAIL


def test_a_cast_to_float32_prevents_certainty_and_its_place_is_named():
    rounded = certificate(norm=single_norm)
    assert rounded.verdict == Verdict.INCONCLUSIVE
    values = check(rounded, "gradient values")
    assert values.verdict == Verdict.INCONCLUSIVE
    assert "to float32 at test_audit_jax.py:" in values.evidence
    assert "(single_norm)" in check(rounded, "float64").evidence


def test_a_gross_fault_is_found_through_a_cast():
    rounded = certificate(norm=single_norm, op=square(-20.0))
    assert check(rounded, "gradient values").verdict == Verdict.FAIL


def test_a_missing_mask_and_a_mixed_batch_are_seen():
    open_mask = certificate(mask=lambda scores: scores)
    assert check(open_mask, "causality").verdict == Verdict.FAIL
    assert check(open_mask, "independent rows").verdict == Verdict.PASS
    mixed = certificate(across=lambda x: x - 0.1 * x.mean(0, keepdims=True))
    assert check(mixed, "independent rows").verdict == Verdict.FAIL


def test_without_a_forward_the_probes_are_not_run():
    loss, _ = program()
    plain = audit_jax(loss, parameters(), batch())
    assert plain.verdict == Verdict.PASS
    assert {"causality", "independent rows"} <= {absent.name for absent in plain.not_run}


def test_bfloat16_parameters_are_judged_at_their_own_values():
    loss, _ = program()
    half = audit_jax(loss, parameters(dtype=jnp.bfloat16), batch())
    assert half.verdict == Verdict.PASS, half.checks
    assert set(half.dtypes.values()) == {"bfloat16"}


@pytest.mark.parametrize(
    ("loss", "params", "message"),
    [
        (
            lambda p, b: p["w"],
            {"w": np.ones(3)},
            r"loss: an array of shape \(3,\).*one floating-point number",
        ),
        (lambda p, b: (p["w"].sum(), 1), {"w": np.ones(3)}, "loss: a tuple found"),
        (lambda p, b: p["v"].sum(), {"w": np.ones(3)}, r"loss\(params, batch\): KeyError: 'v'; it must run"),
        (lambda p, b: 0.0, {"w": np.arange(3)}, "params: no floating-point array"),
        (lambda p, b: 0.0, {"a.b": np.ones(1), "a": {"b": np.ones(1)}}, "two leaves have one dotted name"),
    ],
)
def test_what_cannot_be_audited_has_one_line(loss, params, message):
    with pytest.raises(ArbiterError, match=message):
        audit_jax(loss, params, batch())


def test_gradients_of_another_tree_have_one_line():
    with pytest.raises(ArbiterError, match="gradients: no parameter is called u"):
        audit_jax(
            lambda p, b: (p["w"] ** 2).sum(), {"w": np.ones(3)}, None, gradients=lambda p, b: {"u": p["w"]}
        )


def test_a_loss_that_is_no_number_fails():
    nothing = audit_jax(lambda p, b: jnp.log(-p["w"]).sum(), {"w": np.ones(3)}, None)
    assert check(nothing, "finiteness").verdict == Verdict.FAIL


def test_a_loss_that_needs_concrete_values_is_audited_untraced():
    def loss(params, batch):
        scale = 2.0 if float(batch["tokens"][0, 0]) >= 0 else 1.0
        return (
            scale * (params["w"] ** 2).sum()
            if not isinstance(params["w"], jax.core.Tracer)
            else hidden(params)
        )

    def hidden(params):
        return float((params["w"] ** 2).sum())

    def gradients(params, batch):
        return {"w": 4 * params["w"]}

    untraced = audit_jax(loss, {"w": np.arange(1.0, 4.0)}, batch(), gradients=gradients)
    assert check(untraced, "gradient values").verdict == Verdict.PASS
    assert "cannot be traced" in check(untraced, "float64").evidence
