import pytest
import torch
from faults.zoo import HEALTHY
from zoo import ZooRun

from mothertongue_arbiter import Verdict, audit

# Of each kind of oddity one; `make bench-arbiter` asks all of them.
PART = (
    "zero_initialised_and_accumulated",
    "low_rank_adapter_that_starts_at_zero",
    "bfloat16_autocast",
    "gradient_checkpointing_with_dropout",
    "mixture_with_experts_that_nobody_visits",
    "muon_for_the_matrices",
    "learned_positions_padded_on_the_left",
    "two_ranks_that_accumulate",
    "documents_as_lists",
    "only_what_is_required",
    "each_row_weighed_by_a_number_drawn_for_the_batch",
    "weights_that_know_the_text",
)


@pytest.mark.parametrize("name", PART)
def test_a_healthy_run_stays_silent(name):
    certificate = audit(HEALTHY[name]())
    assert certificate.verdict == Verdict.PASS, [c for c in certificate.checks if c.verdict != Verdict.PASS]


def quantised(run):
    """A straight-through estimator: rounds forward, and lets the gradient pass backward."""

    def straight_through(x):
        return x + ((x * 8).round() / 8 - x).detach()

    run.model.operations.heads_out = straight_through
    return run


def test_a_straight_through_estimator_fails_undeclared():
    certificate = audit(quantised(ZooRun()))
    failed = {check.name for check in certificate.checks if check.verdict == Verdict.FAIL}
    assert "gradient values" in failed


def test_a_straight_through_estimator_passes_declared():
    run = quantised(ZooRun(tied=False))
    upstream = ("embedding.weight", "blocks.0.*", "blocks.1.attention_norm", "blocks.1.[qkv].weight")
    run.declared = run.declared.__class__(**{**vars(run.declared), "straight_through": upstream})
    certificate = audit(run)
    assert certificate.verdict == Verdict.PASS, [c for c in certificate.checks if c.verdict != Verdict.PASS]


def test_a_tensor_that_stays_dead_needs_a_declaration():
    run = ZooRun()
    run.model.forgotten = torch.nn.Linear(4, 4, bias=False)
    run.make_optimizer()
    assert audit(run).verdict == Verdict.PASS
    assert audit(run, step=5).verdict == Verdict.FAIL
    run.declared = run.declared.__class__(**{**vars(run.declared), "conditional": ("forgotten.weight",)})
    assert audit(run, step=5).verdict == Verdict.PASS
