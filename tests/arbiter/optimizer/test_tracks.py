from dataclasses import replace

import numpy as np
import pytest
import torch
from zoo import LEARNING_RATE, ZooRun

from mothertongue_arbiter.declared_optimizer import Group, Optimizer
from mothertongue_arbiter.torch.gradients.rounding import measure_rounding
from mothertongue_arbiter.torch.optimizer import tracks
from mothertongue_arbiter.torch.optimizer.steps import take_steps
from mothertongue_arbiter.torch.optimizer.tracks import claimed_group, claimed_tracks, declared_tracks
from mothertongue_arbiter.torch.optimizer.watching import Applied
from mothertongue_arbiter.update_history import judge

OPTIMIZER = Optimizer(
    groups=(
        Group(parameters=("*norm*",), learning_rate=LEARNING_RATE),
        Group(parameters=("blocks.*", "embedding*"), learning_rate=LEARNING_RATE, weight_decay=0.01),
    )
)


def applied(kind, **numbers):
    one = torch.ones(2)
    return Applied(gradient=one, before=one, after=one, kind=kind, numbers={"lr": 0.1, **numbers})


def test_the_first_group_that_names_a_tensor_owns_it(subject):
    one = subject(ZooRun())
    rounding = measure_rounding(one)
    found, orphans = declared_tracks(one, take_steps(one), OPTIMIZER, rounding)
    assert not orphans
    decays = {track.name: track.group.weight_decay for track in found}
    assert decays["blocks.0.ffn_norm"] == 0
    assert decays["blocks.0.up.weight"] == 0.01
    assert all(len(track.seen) == 3 for track in found)


def test_a_trained_tensor_without_group_is_an_orphan_and_a_frozen_one_is_not(subject):
    run = ZooRun()
    run.model.norm.requires_grad_(False)
    one = subject(run)
    only = replace(OPTIMIZER, groups=(Group(parameters=("blocks.*",), learning_rate=0.1),))
    _, orphans = declared_tracks(one, take_steps(one), only, measure_rounding(one))
    assert orphans == ["embedding.weight"]


def test_a_large_tensor_is_judged_in_pieces_with_the_same_answer(subject, monkeypatch):
    run = ZooRun()
    run.train_step(0)
    one = subject(run)
    track = next(track for track in claimed_tracks(one, take_steps(one)) if track.count > 1000)
    (whole,) = track.pieces()
    monkeypatch.setattr(tracks, "LARGEST_PIECE", 100)
    parts = list(track.pieces())
    assert len(parts) == -(-track.count // 100)
    assert all(judge(part).good for part in [whole, *parts])
    seconds = np.concatenate([part.start.second for part in parts])
    np.testing.assert_array_equal(seconds, whole.start.second.reshape(-1))


@pytest.mark.parametrize(
    ("kind", "numbers", "algorithm"),
    [
        (torch.optim.AdamW, {"betas": (0.9, 0.95), "eps": 1e-8}, "adamw"),
        (torch.optim.Adam, {"betas": (0.9, 0.95), "eps": 1e-8}, "adam"),
        (torch.optim.Adam, {"betas": (0.9, 0.95), "eps": 1e-8, "decoupled_weight_decay": True}, "adamw"),
        (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.1, "nesterov": False}, "sgd"),
    ],
)
def test_an_optimizer_of_torch_claims_its_rule(kind, numbers, algorithm):
    assert claimed_group("a[0].b", applied(kind, **numbers)).algorithm == algorithm


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (torch.optim.AdamW, {"betas": (0.9, 0.95), "eps": 1e-8, "amsgrad": True}),
        (torch.optim.RMSprop, {}),
        (torch.optim.Muon, {"ns_steps": 7, "ns_coefficients": (3.4445, -4.775, 2.0315)}),
        (type("AdamW", (torch.optim.AdamW,), {}), {}),  # a subclass may do anything
    ],
)
def test_what_is_not_modelled_claims_nothing(kind, numbers):
    assert claimed_group("a", applied(kind, **numbers)) is None


def test_moments_that_cannot_be_read_are_unknown(subject):
    run = ZooRun()
    run.train_step(0)
    for state in run.optimizer.state.values():
        state["mine"] = state.pop("exp_avg")
        state["too"] = state.pop("exp_avg_sq")
    assert tracks._start(dict(next(iter(run.optimizer.state.values()))), fresh=False) is None
    assert tracks._start({}, fresh=False).steps == 0
    assert tracks._start(None, fresh=True).steps == 0
    assert tracks._start(None, fresh=False) is None
