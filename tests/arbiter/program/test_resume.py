import pytest
import torch
from shuffled import EPOCH_STEPS, ShuffledRun
from zoo import ZooRun

from mothertongue_arbiter import Declared
from mothertongue_arbiter.torch.program.resume import resume
from mothertongue_arbiter.torch.run.state import preserved
from mothertongue_arbiter.torch.run.subject import Unavailable


def checked(subject, run):
    with preserved(run):
        return resume(subject(run))


class NoMoments(ShuffledRun):
    def resume(self, state):
        moments = {"state": {}, "param_groups": state["optimizer"]["param_groups"]}
        super().resume({**state, "optimizer": moments})


class NoCounters(ShuffledRun):
    def resume(self, state):
        super().resume(state)
        for optimizer in self.optimizer:
            for entry in optimizer.state.values():
                entry["step"] = torch.zeros(())


class NoSchedule(ShuffledRun):
    def resume(self, state):
        fresh = ShuffledRun()
        super().resume({**state, "scheduler": fresh.schedulers[0].state_dict()})


class NoRandomNumbers(ShuffledRun):
    def resume(self, state):
        super().resume({**state, "random": torch.get_rng_state()})


class NoPosition(ShuffledRun):
    def resume(self, state):
        super().resume({**state, "position": 0})


class NoEpoch(ShuffledRun):
    """The order of the first epoch comes again: seen only when a resume lies beyond its end."""

    def resume(self, state):
        super().resume({**state, "epoch": 0})


class OrderFromGlobalNumbers(ShuffledRun):
    """The order of the next epoch is drawn from numbers that no checkpoint holds."""

    def __init__(self, dropout=0.0):
        super().__init__(dropout)
        self.drawn = torch.randperm(len(self.corpus))

    def order(self, epoch):
        return self.drawn

    def train_step(self, step):
        super().train_step(step)
        if self.position == 0:
            self.drawn = torch.randperm(len(self.corpus))

    def checkpoint(self):
        return super().checkpoint() | {"drawn": self.drawn.clone()}

    def resume(self, state):
        super().resume({**state, "random": torch.get_rng_state()})
        self.drawn = state["drawn"].clone()


class RenamedKey(ShuffledRun):
    def checkpoint(self):
        state = super().checkpoint()
        weights = dict(state["model"])
        weights["module.mix.weight"] = weights.pop("mix.weight")
        return {**state, "model": weights}

    def resume(self, state):
        for model in self.replicas:
            model.load_state_dict(state["model"], strict=False)
        super().resume({**state, "model": self.model.state_dict()})


FAULTS = [
    (NoMoments, "moments of the optimizer not restored"),
    (NoCounters, "step counters of the optimizer"),
    (NoSchedule, "learning rate"),
    (NoRandomNumbers, "random numbers are not restored"),
    (NoPosition, "replays the data of step 0"),
    (NoEpoch, "replays the data of step 1"),
    (OrderFromGlobalNumbers, "shuffle order"),
    (RenamedKey, "weights not restored: mix.weight"),
]


@pytest.mark.parametrize(("make", "said"), FAULTS, ids=lambda value: getattr(value, "__name__", ""))
def test_what_a_resume_loses_is_named(subject, make, said):
    check = checked(subject, make())
    assert check.verdict == "FAIL"
    assert said in check.evidence + check.cause


@pytest.mark.parametrize("make", [NoCounters, NoEpoch, RenamedKey])
def test_a_loss_shows_without_a_rebuild_too(subject, make):
    run = make()
    run.rebuild = None
    assert checked(subject, run).verdict == "FAIL"


def test_an_exact_resume_passes_across_the_end_of_an_epoch(subject):
    check = checked(subject, ShuffledRun())
    assert check.verdict == "PASS"
    assert f"across the end of the epoch at step {EPOCH_STEPS}" in check.evidence
    assert "live tensors" in check.evidence  # state_dict() holds the weights themselves


def test_the_run_is_left_as_it_was(subject):
    run, twin = ShuffledRun(), ShuffledRun()
    checked(subject, run)
    torch.manual_seed(1)
    run.train_step(0)
    torch.manual_seed(1)
    twin.train_step(0)
    assert all(map(torch.equal, run.model.parameters(), twin.model.parameters()))
    assert (run.epoch, run.position) == (twin.epoch, twin.position)


def test_a_resume_that_raises_fails(subject):
    run = ShuffledRun()
    run.rebuild = None
    believed = run.resume
    run.resume = lambda state: believed({key: state[key] for key in state if key != "random"})
    check = resume(subject(run))
    assert check.verdict == "FAIL"
    assert "KeyError" in check.evidence


def test_a_run_without_checkpoints_is_not_asked(subject):
    with pytest.raises(Unavailable, match="no `checkpoint`"):
        resume(subject(ZooRun()))


def test_a_long_epoch_is_entered_shortly_before_its_end(subject):
    run = ZooRun()
    run.declared = Declared(epoch_steps=1000)
    run.checkpoint = lambda: {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}
    run.resume = lambda state: (
        run.model.load_state_dict(state["model"]),
        run.optimizer.load_state_dict(state["optimizer"]),
    )
    assert "across the end of the epoch at step 1000" in resume(subject(run)).evidence


def test_a_step_that_never_repeats_proves_nothing(subject):
    run = ShuffledRun(dropout=0.0)
    run.rebuild = None
    calls = []
    believed = run.reduce

    def noisy():
        believed()
        calls.append(1)
        for model in run.replicas:
            model.mix.weight.grad += 1e-3 * len(calls)  # as a sum in another order each time

    run.reduce = noisy
    with pytest.raises(Unavailable, match="other weights each time"):
        resume(subject(run))
