import pytest
import torch
from optimized import declaring
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.declared_optimizer import Optimizer
from mothertongue_arbiter.torch.optimizer.bookkeeping import coverage, ties
from mothertongue_arbiter.torch.run.subject import Unavailable


def test_each_tensor_once_passes(subject):
    assert coverage(subject(ZooRun())).verdict == Verdict.PASS


def test_several_optimizers_are_one_coverage(subject):
    run = ZooRun()
    matrices, gains = (group["params"] for group in run.optimizer.param_groups)
    run.optimizer = [torch.optim.SGD(matrices, lr=0.1), torch.optim.AdamW(gains, weight_decay=0.0)]
    assert coverage(subject(run)).verdict == Verdict.PASS
    run.optimizer.append(torch.optim.SGD(gains[:1], lr=0.1))
    check = coverage(subject(run))
    assert "2 times in the optimizer" in check.evidence
    assert check.verdict == Verdict.FAIL


def test_a_run_without_optimizer_is_not_judged(subject):
    run = ZooRun()
    run.optimizer = None
    with pytest.raises(Unavailable, match="no `optimizer`"):
        coverage(subject(run))


def test_a_tie_that_the_model_does_not_have_is_not_judged(subject):
    run = ZooRun()
    run.declared = run.declared.__class__(tied=(("embedding.weight", "no.such"),))
    with pytest.raises(Unavailable, match=r"no\.such"):
        ties(subject(run))
    run.declared = run.declared.__class__()
    with pytest.raises(Unavailable, match="no tie is declared"):
        ties(subject(run))


def test_one_block_listed_twice_needs_a_declared_tie(subject):
    run = ZooRun()
    run.model.blocks[1] = run.model.blocks[0]
    check = ties(subject(run))
    assert check.verdict == Verdict.FAIL
    assert "blocks.1 is blocks.0" in check.evidence
    pair = ("blocks.0.q.weight", "blocks.1.q.weight")
    run.declared = run.declared.__class__(tied=(*run.declared.tied, pair))
    assert ties(subject(run)).verdict == Verdict.PASS


@pytest.mark.parametrize(
    ("left_out", "verdict"), [(None, Verdict.PASS), ("blocks.0.up.weight", Verdict.FAIL)]
)
def test_declared_masters_stand_for_their_weights(subject, left_out, verdict):
    run = declaring(Optimizer(groups=(), master_dtype="float32"))
    weights = dict(run.model.named_parameters())
    masters = [w.detach().clone().requires_grad_() for name, w in weights.items() if name != left_out]
    run.model.to(torch.bfloat16)
    run.optimizer = torch.optim.AdamW(masters, weight_decay=0.0)
    check = coverage(subject(run))
    assert check.verdict == verdict, check.evidence
    assert [finding.subject for finding in check.findings] == ([left_out] if left_out else [])
