from types import SimpleNamespace

import torch
from shuffled import ShuffledRun
from torch import nn
from zoo import ZooRun

from mothertongue_arbiter.torch.run.fresh import fresh_run, rebuilt, replicas_of


def test_a_rebuilt_run_is_another_one():
    run = ShuffledRun()
    fresh = fresh_run(run, seed=0)
    assert fresh is not None
    assert fresh.model is not run.model
    assert rebuilt(run, torch.float64, seed=0).model.head.weight.dtype == torch.float64


def test_what_cannot_be_rebuilt_gives_none():
    assert fresh_run(ZooRun(), seed=0) is None
    run = ZooRun()
    run.rebuild = lambda dtype: nn.Linear(2, 2)  # a bare module has no step
    assert fresh_run(run, seed=0) is None
    run.rebuild = lambda dtype: run
    assert fresh_run(run, seed=0) is None


def test_a_rebuild_may_take_no_argument_or_only_a_dtype():
    run = ZooRun()
    run.rebuild = lambda: ZooRun()
    assert fresh_run(run, seed=0) is not None

    def only_a_dtype(dtype):
        if dtype is None:
            raise TypeError("a dtype expected")
        return ZooRun()

    run.rebuild = only_a_dtype
    assert fresh_run(run, seed=0) is not None


def test_random_numbers_are_fixed_before_each_rebuild():
    run = SimpleNamespace(model=nn.Linear(1, 1), rebuild=lambda dtype: torch.rand(3))
    assert torch.equal(rebuilt(run, None, seed=1), rebuilt(run, None, seed=1))


def test_replicas_may_be_models_runs_a_mapping_or_absent():
    run = ShuffledRun()
    assert replicas_of(run) == run.replicas
    assert replicas_of(ZooRun()) != []
    one, other = ZooRun(), ZooRun()
    for replicas in ([one, other], (one.model, other.model), {0: one, 1: other}, lambda: [one, other]):
        one.replicas = replicas
        assert replicas_of(one) == [one.model, other.model]
