import pytest

from mothertongue_arbiter.bisection import locate

NAMES = [f"t{i}" for i in range(40)]


@pytest.mark.parametrize("guilty", [{"t0"}, {"t39"}, {"t7", "t8", "t30"}, set(NAMES[:17])])
def test_it_finds_all_culprits_nearest_the_loss_first(guilty):
    culprits = locate(NAMES, lambda group: bool(guilty & set(group)), questions=200)
    assert list(culprits.names) == [name for name in reversed(NAMES) if name in guilty]
    assert culprits.complete


def test_one_culprit_costs_about_two_questions_a_halving():
    asked = []
    locate(NAMES, lambda group: asked.append(group) or "t0" in group)
    assert len(asked) <= 13


def test_a_search_that_runs_out_of_questions_says_so_and_knows_the_nearest():
    culprits = locate(NAMES, lambda group: True, questions=8)
    assert not culprits.complete
    assert culprits.names[0] == "t39"
