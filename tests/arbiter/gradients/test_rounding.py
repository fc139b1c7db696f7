from dataclasses import replace

import pytest
import torch
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.torch.gradients.rounding import determinism, measure_rounding, own_precision
from mothertongue_arbiter.torch.run.subject import Unavailable


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


def judged(run, subject, exact):
    one = subject(run)
    own, rounding = one.own, measure_rounding(one)
    return own_precision(exact(run), own, rounding)


def doubled_in_float32(run):
    """Plant a backward that is wrong in the run's own precision only."""
    run.model.blocks[0].up.weight.register_hook(lambda g: g if g.dtype == torch.float64 else g * 2)
    return run


def weighed_by_numbers_drawn_for_the_batch():
    run = ZooRun()
    batch = run.batch

    def noisy(step):
        return batch(step) | {"noise": torch.rand(4, 1, generator=torch.Generator().manual_seed(step))}

    run.batch = noisy
    plain = run.loss
    run.loss = lambda model, batch: plain(model, batch) * (1 + batch["noise"].to(model.norm.dtype).mean())
    return run


def weighed_by_numbers_that_the_loss_draws():
    run = ZooRun()
    plain = run.loss

    def loss(model, batch):
        noise = torch.rand(20, generator=torch.Generator().manual_seed(1), dtype=model.norm.dtype)
        return plain(model, batch) * (1 + noise.square().mean())

    run.loss = loss
    return run


def normalised_without_an_epsilon_of_its_own():
    run = ZooRun()
    run.model.embedding.weight.data.mul_(0.05)
    run.model.operations.norm = lambda x, gain: torch.nn.functional.rms_norm(x, x.shape[-1:]) * gain
    return run


FOLLOWS_THE_PRECISION = [
    weighed_by_numbers_drawn_for_the_batch,
    weighed_by_numbers_that_the_loss_draws,
    normalised_without_an_epsilon_of_its_own,
]


@pytest.mark.parametrize("make", FOLLOWS_THE_PRECISION)
def test_what_depends_on_the_precision_is_the_same_in_float64(make, subject, exact):
    assert judged(make(), subject, exact).verdict == Verdict.PASS


@pytest.mark.parametrize("make", FOLLOWS_THE_PRECISION)
def test_a_fault_is_seen_beside_what_depends_on_the_precision(make, subject, exact):
    check = judged(doubled_in_float32(make()), subject, exact)
    assert check.verdict == Verdict.FAIL
    assert [finding.subject for finding in check.findings] == ["blocks.0.up.weight"]


def test_another_choice_in_another_precision_is_no_wrong_backward(subject, exact):
    run = ZooRun()
    plain = run.loss

    def loss(model, batch):
        chosen = torch.tensor(1 / 3, dtype=model.norm.dtype).double() > 1 / 3  # a tie, but for its rounding
        return plain(model, batch) * (2 if chosen else 1)

    run.loss = loss
    with pytest.raises(Unavailable, match="where rounding explains"):
        judged(run, subject, exact)


def test_gradients_that_are_declared_not_to_repeat_are_not_compared(subject, exact):
    run = doubled_in_float32(ZooRun())
    run.declared = replace(run.declared, deterministic=False)
    with pytest.raises(Unavailable, match="not deterministic"):
        judged(run, subject, exact)
