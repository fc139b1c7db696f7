import time
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from zoo import ZooRun

from mothertongue_arbiter import Verdict
from mothertongue_arbiter.audit import Options
from mothertongue_arbiter.torch.battery import certify


def test_every_check_is_run_or_listed_as_not_run():
    certificate = certify(ZooRun(), step=0, options=Options())
    names = [check.name for check in certificate.checks] + [absent.name for absent in certificate.not_run]
    assert len(names) == len(set(names)) >= 28
    assert certificate.shapes["blocks.0.k.weight"] == (16, 32)
    assert certificate.dtypes["norm"] == "float32"
    assert certificate.versions["torch"]


def test_the_cost_is_counted_in_steps_that_were_timed_and_apart_from_float64():
    run, slow = ZooRun(), 0.05
    believed = run.train_step
    run.train_step = lambda step: (time.sleep(slow), believed(step))
    certificate = certify(run, step=0, options=Options())
    wide = sum(one.seconds for one in certificate.checks if one.name in ("gradient values", "causality"))
    assert slow < certificate.step_seconds < 2 * slow
    assert wide < certificate.float64_seconds < certificate.seconds
    assert certificate.training_steps * certificate.step_seconds < certificate.seconds
    run.train_step = None
    assert certify(run, step=0, options=Options()).step_seconds is None


def test_a_check_that_raises_is_inconclusive_and_the_others_go_on():
    run = ZooRun()
    run.documents = lambda step, rank: 1 / 0
    answers = {check.name: check for check in certify(run, step=0, options=Options()).checks}
    assert answers["isolated documents"].verdict == "INCONCLUSIVE"
    assert "ZeroDivisionError" in answers["isolated documents"].evidence
    assert answers["gradient values"].verdict == "PASS"


class Balanced(nn.Module):
    """Experts whose loads move a buffer in each forward, as those of DeepSeek-V3."""

    def __init__(self):
        super().__init__()
        self.embedding, self.router, self.head = nn.Embedding(48, 16), nn.Linear(16, 4), nn.Linear(16, 48)
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, ids):
        x = self.embedding(ids)
        shares = self.router(x).softmax(-1)
        chosen = F.one_hot((shares + self.bias).argmax(-1), 4)
        with torch.no_grad():
            self.bias += 0.01 * (0.25 - chosen.double().mean((0, 1))).sign()
        outputs = torch.stack([expert(x) for expert in self.experts], -2)
        return self.head(x + ((chosen * shares).unsqueeze(-1) * outputs).sum(-2))


def with_power_iteration():
    inner = spectral_norm(nn.Linear(16, 32))
    return nn.Sequential(nn.Embedding(48, 16), inner, nn.GELU(), nn.Linear(32, 48))


def least(make):
    torch.manual_seed(0)

    def loss(model, batch):
        return F.cross_entropy(model(batch["input_ids"]).flatten(0, 1), batch["targets"].flatten())

    return SimpleNamespace(model=make(), loss=loss, batch=ZooRun().batch)


def failed_of(run):
    certificate = certify(run, step=0, options=Options())
    return {check.name for check in certificate.checks if check.verdict == Verdict.FAIL}


@pytest.mark.parametrize("make", [Balanced, with_power_iteration])
def test_a_buffer_that_each_forward_moves_is_no_fault(make):
    run = least(make)
    assert certify(run, step=0, options=Options()).verdict == Verdict.PASS
    calls = []

    def growing(gradient):
        calls.append(gradient)
        return gradient * len(calls)

    next(run.model.parameters()).register_hook(growing)
    assert "same step twice" in failed_of(run)


def test_a_wrong_backward_beside_a_moving_buffer_fails():
    run = least(Balanced)
    run.model.experts[1].weight.register_hook(lambda g: 2 * g)
    assert "gradient values" in failed_of(run)
