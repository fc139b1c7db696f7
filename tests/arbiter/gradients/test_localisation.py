"""Where a fault is, against where it was put."""

import pytest
from faults.zoo import FAULTS
from zoo import ZooRun

from mothertongue_arbiter import Declared
from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.certificate import Check, Finding, Verdict
from mothertongue_arbiter.torch.gradients.localisation import OUTSIDE, located, located_between, owner
from mothertongue_arbiter.torch.run.precision import true_float64
from mothertongue_arbiter.torch.run.subject import ExactSubject, Subject

GRADIENT_CHECKS = {"gradient presence", "gradient values", "dead elements"}
LEAST_SHARE = 0.8

# Where each fault was put, by the smallest module around it; of several places the one nearest the loss.
PLACES = {
    "a1_rms_norm_without_backward": "ByteModel",  # the final norm
    "a3_layer_norm_without_backward": "ByteModel",
    "a4_softmax_without_backward": "blocks.1",
    "a5_rope_without_backward": "blocks.1",
    "b4_gate_backward_forgets_a_term": "blocks.1",
    "b8_one_head_scaled": "blocks.1",
    "b7_scatter_overwrites": "embedding",
    "a6_detach_between_layers": "ByteModel",
    "a7_norm_gain_without_gradient": "ByteModel",
    "a8_frozen_by_mistake": "blocks.1.down",
    "b1_grouped_heads_drop_the_sum": "blocks.1",
    "b2_rope_backward_with_the_wrong_sign": "blocks.1",
    "b3_rms_norm_backward_without_projection": "ByteModel",
    "b6_weight_gradients_halved": "blocks.1.up",
    "a15_half_of_the_rows_dead": "blocks.0.down",
    "b11_gradient_of_the_step_before": "blocks.0.v",
}


def first_failure(subject: ExactSubject) -> Check:
    judge = subject.judge
    checks = (judge.presence, judge.values, judge.dead_elements)
    return next(check for check in (one() for one in checks) if check.verdict == Verdict.FAIL)


def test_the_named_module_contains_the_fault():
    """The smallest such module, for at least four gradient faults in five."""
    asked = [fault for fault in FAULTS if set(fault.caught_by) & GRADIENT_CHECKS and fault.name in PLACES]
    assert len(asked) == len(PLACES)
    named = {}
    for fault in asked:
        run = fault.make()
        with true_float64(run.model) as mode:
            subject = ExactSubject(Subject(run, step=0, options=Options()), mode)
            named[fault.name] = located(subject, first_failure(subject)).module
    right = [name for name, module in named.items() if module == PLACES[name]]
    assert len(right) >= LEAST_SHARE * len(PLACES), named


def test_a_wrong_backward_inside_one_of_two_alike_modules_is_told_apart(exact):
    run = ZooRun()
    run.model.blocks[0].o.register_full_backward_hook(lambda module, inputs, outputs: (inputs[0] * 1.5,))
    subject = exact(run)
    check = located(subject, subject.judge.values())
    assert check.module == "blocks.0.o"
    assert check.cause.endswith("in blocks.0.o")


def test_a_fault_of_the_loss_itself_lies_outside_the_model(exact):
    run = ZooRun()
    loss = run.loss
    run.forward_once = run.forward

    def half_detached(model, batch):
        logits = run.forward_once(model, batch)
        run.forward = lambda model, batch: logits * 0.5 + logits.detach() * 0.5
        try:
            return loss(model, batch)
        finally:
            run.forward = run.forward_once

    run.loss = half_detached
    subject = exact(run)
    assert located(subject, subject.judge.values()).module == OUTSIDE


def test_a_check_that_passed_names_no_module(exact):
    subject = exact(ZooRun())
    assert located(subject, subject.judge.values()).module == ""


def test_what_disagrees_by_declaration_is_not_followed(exact):
    """Then the owner of the nearest tensor is named."""
    run = ZooRun()
    run.declared = Declared(stop_gradients=("embedding.weight",))
    run.model.blocks[0].up.weight.register_hook(lambda gradient: gradient * 0.5)
    subject = exact(run)
    assert located(subject, subject.judge.values()).module == "blocks.0.up"


@pytest.mark.parametrize(
    ("name", "place"),
    [("blocks.1.gate.weight", "blocks.1"), ("blocks.0.down.weight", "blocks"), ("norm", "ByteModel")],
)
def test_between_two_tensors_lies_the_smallest_module_around_both(exact, name, place):
    subject = exact(ZooRun(tied=False))
    check = Check(
        name="own precision",
        verdict=Verdict.FAIL,
        evidence="",
        findings=(Finding(subject=name, verdict="WRONG"),),
    )
    assert located_between(subject, check).module == place


def test_a_tensor_of_the_whole_model_belongs_to_it(exact):
    subject = exact(ZooRun())
    assert owner(subject, "norm") == "ByteModel"
    assert owner(subject, "blocks.0.q.weight") == "blocks.0.q"
