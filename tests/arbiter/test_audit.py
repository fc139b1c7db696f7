import math

import pytest
import torch
from torch.nn import functional as F
from zoo import ZooRun, rms_norm

from mothertongue_arbiter import ArbiterError, Declared, Options, Verdict, audit

TRUE_FLOAT64 = 1e-8  # the error that is left when no cast to float32 survives; with casts it is 1e-4


class TransformersRun:
    """A causal language model of transformers with random weights, and only what an audit requires."""

    def __init__(self):
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=128, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
            num_key_value_heads=2, head_dim=8, max_position_embeddings=64, tie_word_embeddings=True,
        )  # fmt: skip
        self.model = Qwen3ForCausalLM(config)
        self.declared = Declared()

    def batch(self, step):
        return torch.randint(0, 128, (2, 16), generator=torch.Generator().manual_seed(step))

    def forward(self, model, batch):
        return model(input_ids=batch).logits

    def loss(self, model, batch):
        logits = self.forward(model, batch)[:, :-1].float()
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def answers(certificate):
    return {check.name: check for check in certificate.checks}


def test_a_model_that_casts_to_float32_inside_agrees_in_true_float64():
    run = TransformersRun()
    certificate = audit(run)
    assert certificate.verdict == Verdict.PASS
    checks = answers(certificate)
    error = float(checks["gradient values"].evidence.split()[2])
    assert error < TRUE_FLOAT64
    assert any(finding.subject == "model.layers.0.input_layernorm" for finding in checks["float64"].findings)
    assert run.model.dtype == torch.float32


def test_the_tensor_nearest_the_loss_is_named():
    run = ZooRun(tied=False)
    run.model.blocks[0].gate.weight.register_hook(lambda g: g * 0.5)
    run.model.blocks[1].k.weight.register_hook(lambda g: g * 1.05)
    check = answers(audit(run))["gradient values"]
    assert [finding.subject for finding in check.findings] == ["blocks.1.k.weight", "blocks.0.gate.weight"]


def test_severed_tensors_are_all_named():
    run = ZooRun()
    run.model.operations.softmax = lambda scores: scores.softmax(-1).detach()
    found = {finding.subject for finding in answers(audit(run))["gradient presence"].findings}
    assert found == {f"blocks.{i}.{name}.weight" for i in range(2) for name in ("q", "k")}


def test_what_a_run_lacks_is_listed_with_its_reason():
    whole = ZooRun()

    class Least:
        model, loss, batch = whole.model, whole.loss, whole.batch

    certificate = audit(Least())
    reasons = {one.name: one.reason for one in certificate.not_run}
    assert reasons["causality"] == "the run has no `forward`"
    assert reasons["movement"] == "the run has no `train_step`"
    assert "optimizer coverage" in reasons
    assert {check.name for check in certificate.checks}.isdisjoint(reasons)


def test_a_model_that_has_no_float64_is_inconclusive():
    run = ZooRun()
    loss = run.loss

    def loss_in_float32_only(model, batch):
        if model.norm.dtype == torch.float64:
            raise RuntimeError("this kernel knows float32 only")
        return loss(model, batch)

    run.loss = loss_in_float32_only
    certificate = audit(run)
    assert certificate.verdict == Verdict.INCONCLUSIVE
    assert "float32 only" in answers(certificate)["gradient values"].evidence
    assert run.model.norm.dtype == torch.float32


def test_a_leak_behind_a_projection_that_starts_at_zero_is_seen():
    run = ZooRun()
    run.model.operations.mask = lambda documents: torch.ones(1, 1, 14, 14, dtype=torch.bool)
    for block in run.model.blocks:
        torch.nn.init.zeros_(block.o.weight)
    assert answers(audit(run))["causality"].verdict == Verdict.FAIL


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loss": lambda model, batch: 3.0}, "a float found, a scalar tensor expected"),
        ({"loss": lambda model, batch: torch.ones(2, 3)}, "a tensor of shape (2, 3) found"),
        ({"loss": lambda model, batch: torch.tensor(1.0)}, "does not depend on any trainable parameter"),
        ({"loss": lambda model, batch: batch["nothing"]}, "KeyError"),
    ],
)
def test_a_run_that_cannot_be_audited_is_answered_in_one_line(change, said):
    run = ZooRun()
    vars(run).update(change)
    with pytest.raises(ArbiterError, match="loss") as failure:
        audit(run)
    assert said in str(failure.value)
    assert "\n" not in str(failure.value)


def test_something_that_is_no_run_is_refused():
    with pytest.raises(ArbiterError, match="no model, loss, batch"):
        audit(object())


def test_a_gradient_that_is_wrong_in_one_row_of_one_gain_is_found():
    run = ZooRun()

    def almost(x, gain):
        return rms_norm(x, torch.cat([gain[:1].detach(), gain[1:]]))

    run.model.operations.norm = almost
    assert answers(audit(run))["dead elements"].verdict == Verdict.FAIL


def test_progress_names_each_check():
    named = []
    certificate = audit(ZooRun(), options=Options(progress=named.append, rows=2))
    assert {check.name for check in certificate.checks} <= set(named)


def test_the_expected_initial_loss_is_the_logarithm_of_the_vocabulary():
    check = answers(audit(ZooRun()))["initial loss"]
    assert f"{math.log(48):.4f}" in check.evidence
