from mothertongue_arbiter.declared_optimizer import Group, Optimizer


def test_the_rate_of_a_group_is_a_number_or_a_function_of_the_step():
    constant = Group(parameters=("*",), learning_rate=0.1)
    falling = Group(parameters=("*",), learning_rate=lambda step: 0.1 / (step + 1))
    assert (constant.rate(3), falling.rate(3)) == (0.1, 0.025)


def test_nothing_is_clipped_unless_declared():
    optimizer = Optimizer(groups=(Group(parameters=("*",), learning_rate=0.1),))
    assert optimizer.clip_norm is None
    assert optimizer.clip_value is None
