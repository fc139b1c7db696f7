import jax.numpy as jnp
import numpy as np
import pytest

from mothertongue_arbiter import ArbiterError
from mothertongue_arbiter.jax.trees import Parameters, float64_enabled, in_float64

TREE = {
    "layers": [{"w": np.arange(2.0, dtype=np.float32)}, {"w": jnp.ones((2, 3), jnp.bfloat16)}],
    "step": np.int32(3),
    "pair": (np.ones(1), None),
}


def test_names_are_those_of_the_path_and_integers_are_left_alone():
    named = Parameters(TREE)
    assert named.names == ["layers.0.w", "layers.1.w", "pair.0"]
    assert named.shapes["layers.1.w"] == (2, 3)
    assert named.dtypes["layers.1.w"] == "bfloat16"


def test_the_tree_comes_back_in_float64_with_what_was_moved():
    named = Parameters(TREE)
    with float64_enabled():
        tree = named.tree({"pair.0": np.array([7.0])})
        assert tree["layers"][1]["w"].dtype == tree["layers"][0]["w"].dtype == jnp.float64
    assert float(tree["pair"][0][0]) == 7.0
    assert tree["pair"][1] is None
    assert tree["step"] == 3
    assert np.array_equal(tree["layers"][0]["w"], [0.0, 1.0])


def test_float64_is_enabled_inside_only():
    with float64_enabled():
        assert in_float64({"x": np.ones(2, np.float32), "n": np.ones(2, np.int32)})["x"].dtype == jnp.float64
    assert jnp.asarray(np.ones(2)).dtype == jnp.float32


def test_gradients_of_another_shape_have_one_line():
    with pytest.raises(ArbiterError, match=r"gradients: w has shape \(2,\), its parameter \(3,\)"):
        Parameters({"w": np.ones(3)}).named({"w": np.ones(2)})
