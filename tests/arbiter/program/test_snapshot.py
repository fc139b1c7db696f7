import torch
from shuffled import ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter.torch.program.snapshot import differences, snapshot


def changed(run, change):
    before = snapshot(run)
    change()
    after = snapshot(run)
    return {kind: found for kind in vars(before) if (found := differences(before, after, kind))}


def test_each_part_of_the_state_is_told_by_its_name():
    run = ShuffledRun()
    run.train_step(0)
    with torch.no_grad():
        assert changed(run, lambda: run.replicas[1].norm.bias.add_(1)) == {"weights": ["rank 1: norm.bias"]}
    state = run.optimizer[0].state[run.model.head.weight]
    assert changed(run, lambda: state["exp_avg"].zero_()) == {"moments": ["head.weight/exp_avg"]}
    assert changed(run, lambda: state["step"].zero_()) == {"counters": ["head.weight/step"]}
    assert changed(run, lambda: setattr(run, "epoch", 4)) == {"own": ["epoch"]}
    assert changed(run, lambda: torch.rand(1)) == {"random": ["torch"]}
    assert changed(run, run.schedulers[0].step) == {"rates": ["learning rate of group 0"]}


def test_an_optimizer_written_by_hand_and_averaged_weights_are_seen():
    class Momentum:
        def __init__(self, model):
            self.parameters = list(model.parameters())
            self.velocity = [torch.zeros_like(one) for one in self.parameters]
            self.count = 0

    run = ZooRun()
    run.optimizer = Momentum(run.model)
    run.ema = {"norm": torch.ones(3)}
    assert changed(run, lambda: run.optimizer.velocity[2].add_(1)) == {"moments": ["optimizer 0/velocity.2"]}
    assert changed(run, lambda: setattr(run.optimizer, "count", 1)) == {"counters": ["optimizer 0/count"]}
    assert changed(run, lambda: run.ema["norm"].add_(1)) == {"ema": ["ema.norm"]}


def test_a_value_that_is_not_a_number_equals_itself():
    run = ShuffledRun()
    run.value = float("nan")
    assert changed(run, lambda: None) == {}
