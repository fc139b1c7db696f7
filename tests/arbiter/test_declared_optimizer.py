import pytest

from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.errors import ArbiterError


def test_the_rate_of_a_group_is_a_number_or_a_function_of_the_step():
    constant = Group(parameters=("*",), learning_rate=0.1)
    falling = Group(parameters=("*",), learning_rate=lambda step: 0.1 / (step + 1))
    assert (constant.rate(3), falling.rate(3)) == (0.1, 0.025)


def test_nothing_is_clipped_unless_declared():
    optimizer = Optimizer(groups=(Group(parameters=("*",), learning_rate=0.1),))
    assert optimizer.clip_norm is None
    assert optimizer.clip_value is None


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"parameters": "*norm*"}, r"one string, a tuple of patterns expected; write \('\*norm\*',\)"),
        ({"algorithm": "AdamW"}, "algorithm 'AdamW' found, one of sgd, adam, adamw, lion, muon expected"),
        ({"adjust": "original"}, "adjust 'original' found, one of keller, moonshot, none expected"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(facts, told):
    with pytest.raises(ArbiterError, match=told):
        Group(**{"parameters": ("*",), "learning_rate": 0.1, **facts})
