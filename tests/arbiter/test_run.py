from types import SimpleNamespace

import pytest
from zoo import ZooRun

from mothertongue_arbiter.errors import ArbiterError
from mothertongue_arbiter.run import Declared, TrainingRun, declarations, matches


def test_model_loss_and_batch_make_a_training_run():
    assert isinstance(ZooRun(), TrainingRun)
    assert not isinstance(object(), TrainingRun)


@pytest.mark.parametrize(
    ("name", "patterns", "expected"),
    [
        ("blocks.0.norm.weight", ("*norm.weight",), True),
        ("blocks.0.norm.weight", ("blocks.0.norm.weight",), True),
        ("blocks.0.up.weight", ("*norm*", "blocks.1.*"), False),
        ("anything", (), False),
    ],
)
def test_names_match_patterns(name, patterns, expected):
    assert matches(name, patterns) is expected


def test_straight_through_and_stopped_gradients_are_expected_to_disagree():
    declared = Declared(stop_gradients=("a",), straight_through=("b.*",), frozen=("c",), conditional=("d",))
    assert declared.expects_disagreement("a")
    assert declared.expects_disagreement("b.weight")
    assert not declared.expects_disagreement("c")
    assert declared.is_frozen("c")
    assert declared.may_be_unused("d")


def test_a_run_without_a_declaration_gets_the_defaults():
    assert declarations(object()) == Declared()
    run = ZooRun()
    assert declarations(run) is run.declared


def test_a_declaration_may_be_a_mapping_of_its_fields() -> None:
    run = SimpleNamespace(declared={"causal": False, "frozen": ("wte.*",)})
    assert declarations(run) == Declared(causal=False, frozen=("wte.*",))


def test_an_unknown_fact_is_refused_and_the_nearest_one_is_named() -> None:
    with pytest.raises(ArbiterError, match=r"unknown fact 'casual'; did you mean 'causal'"):
        declarations(SimpleNamespace(declared={"casual": False}))


def test_a_declaration_of_another_kind_is_refused() -> None:
    with pytest.raises(ArbiterError, match="a list found"):
        declarations(SimpleNamespace(declared=[1]))


def test_what_is_not_declared_trainable_is_frozen() -> None:
    declared = Declared(trainable=("head.*",), frozen=("head.bias",))
    assert [declared.is_frozen(name) for name in ("head.weight", "head.bias", "body.weight")] == [
        False,
        True,
        True,
    ]
