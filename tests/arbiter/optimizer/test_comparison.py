import math

import torch

from mothertongue_arbiter import Declared
from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.gradients.rounding import OwnPrecision
from mothertongue_arbiter.torch.optimizer.comparison import along, apart, compare, norm_of
from mothertongue_arbiter.torch.optimizer.watching import Recorded

ONE, TWO = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
ROUNDING = OwnPrecision(dtype="float32", epsilon=1e-7, tolerances={"a": 1e-6, "b": 1e-6})
CLIPPED = Declared(optimizer=Optimizer(groups=(Group(parameters=("*",), learning_rate=1.0),), clip_norm=1.0))


def test_the_norm_is_that_of_all_gradients_together():
    assert norm_of({"a": ONE, "b": TWO, "c": None}) == 5.0


def test_a_length_is_measured_along_the_reference():
    assert along(2 * ONE + TWO, ONE) == 2.0
    assert apart(2 * ONE, ONE, 2.0) == 0.0
    assert apart(None, ONE, 2.0) == 1.0
    assert math.isinf(apart(ONE, None, 1.0))


def test_one_common_factor_is_that_of_clipping():
    record = Recorded(handed={"a": ONE / 5, "b": TWO / 5})
    found = compare(record, {"a": ONE, "b": TWO}, ROUNDING, CLIPPED)
    assert not found.unlike
    assert found.as_declared
    other = compare(Recorded(handed={"a": ONE / 5, "b": TWO}), {"a": ONE, "b": TWO}, ROUNDING, CLIPPED)
    assert other.unlike
