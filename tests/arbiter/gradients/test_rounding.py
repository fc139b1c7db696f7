import torch
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.rounding import determinism, measure_rounding, own_precision


def in_bfloat16(run):
    loss = run.loss

    def autocast(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return loss(model, batch)

    run.loss = autocast
    return run


def test_the_precision_of_a_run_is_seen_not_asked(subject):
    assert measure_rounding(subject(ZooRun())).dtype == "float32"
    assert measure_rounding(subject(in_bfloat16(ZooRun()))).dtype == "bfloat16"


def test_tolerances_follow_the_precision(subject):
    fine = measure_rounding(subject(ZooRun())).tolerances
    coarse = measure_rounding(subject(in_bfloat16(ZooRun()))).tolerances
    assert all(fine[name] < 1e-3 < coarse[name] for name in fine)


def test_measuring_leaves_the_weights_bit_for_bit(subject):
    run = ZooRun()
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    measure_rounding(subject(run))
    assert all(map(torch.equal, before, run.model.parameters()))


def test_a_gradient_with_noise_of_its_own_does_not_repeat(subject):
    run = ZooRun()
    run.model.norm.register_hook(lambda g: g * torch.empty(1).uniform_(0.9, 1.1, generator=torch.Generator()))
    noisy = torch.Generator()
    run.model.norm.register_hook(lambda g: g * (1 + 0.1 * torch.rand(1, generator=noisy)))
    one = subject(run)
    assert determinism(one, measure_rounding(one)).verdict == Verdict.FAIL


def test_a_fault_that_float64_does_not_have_is_seen(subject, exact):
    run = in_bfloat16(ZooRun())
    weight = run.model.blocks[0].up.weight
    weight.register_hook(lambda g: g if g.dtype == torch.float64 else g * 2)
    one = subject(run)
    own, rounding = one.own, measure_rounding(one)
    check = own_precision(exact(run), own, rounding)
    assert check.verdict == Verdict.FAIL
    assert [finding.subject for finding in check.findings] == ["blocks.0.up.weight"]
