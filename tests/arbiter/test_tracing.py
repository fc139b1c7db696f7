import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mothertongue_arbiter.jax.tracing import trace
from mothertongue_arbiter.jax.trees import Parameters, float64_enabled

TREE = {name: np.ones(3) for name in ("a", "b", "c", "unused")}


def used_backwards(params, batch):
    return (((params["c"] * 2) + params["b"]) * params["a"]).sum()


def traced(loss):
    with float64_enabled():
        return trace(loss, Parameters(TREE), None)


@pytest.mark.parametrize("wrap", [lambda loss: loss, jax.jit, jax.checkpoint])
def test_parameters_are_ordered_by_their_first_use_also_inside_a_call(wrap):
    assert traced(wrap(used_backwards)).order == ("c", "b", "a", "unused")


def test_a_loss_in_float64_has_no_cast():
    assert traced(used_backwards).casts == ()


def test_casts_are_found_inside_scan_and_jit_with_their_line():
    def lowered(x):
        return x.astype(jnp.bfloat16).astype(x.dtype)

    def loss(params, batch):
        return jax.lax.scan(lambda x, _: (jax.jit(lowered)(x), None), params["a"], None, length=2)[0].sum()

    (cast,) = traced(loss).casts
    assert cast.startswith("to bfloat16 at test_tracing.py:")
    assert cast.endswith("(lowered)")


def test_constants_in_float32_are_no_cast():
    def loss(params, batch):
        return (params["a"] * jnp.sin(jnp.arange(3, dtype=jnp.float32))).sum()

    assert traced(loss).casts == ()


def test_a_loss_that_cannot_be_traced_says_why():
    found = traced(lambda params, batch: float(params["a"].sum()))
    assert found.order == ("a", "b", "c", "unused")
    assert "ConcretizationTypeError" in found.problem
