import pytest
import torch
from torch import nn
from zoo import ZooRun

from mothertongue_arbiter.torch.optimizer.watching import Recorded, Watch, average_of


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(2))
        self.b = nn.Parameter(torch.ones(2, 2))


class Run:
    def __init__(self):
        self.model = Plain()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)


def give(run, value=1.0):
    for parameter in run.model.parameters():
        parameter.grad = torch.full_like(parameter, value)


def test_a_call_is_seen_with_gradients_weights_and_numbers():
    run, record = Run(), Recorded()
    give(run)
    run.model.a.grad = None
    with Watch(run).watching(record):
        run.optimizer.step()
    (call,) = record.calls
    assert call["a"].gradient is None
    assert call["b"].numbers["lr"] == 0.5
    torch.testing.assert_close(call["b"].before - call["b"].after, torch.full((2, 2), 0.5))
    assert record.learning_rate == 0.5
    assert "step" not in vars(run.optimizer)


def test_each_optimizer_is_seen_with_the_gradients_of_its_own_moment():
    run, record = Run(), Recorded()
    run.optimizer = [torch.optim.SGD([one], lr=0.5) for one in run.model.parameters()]
    with Watch(run).watching(record):
        for number, optimizer in enumerate(run.optimizer):
            give(run, value=number + 1.0)
            optimizer.step()
    assert [set(call) for call in record.calls] == [{"a"}, {"b"}]
    assert record.handed["a"][0] == 1.0
    assert record.handed["b"][0, 0] == 2.0


def test_masters_are_found_by_what_they_round_to():
    run = Run()
    exact = run.model.b.detach() + torch.rand(2, 2)
    run.model.bfloat16()
    run.model.b.data.copy_(exact)
    masters = [exact.clone(), torch.ones(2)]
    run.optimizer = torch.optim.SGD([nn.Parameter(one) for one in masters], lr=0.5)
    watch = Watch(run)
    assert set(watch.masters) == {"a", "b"}
    torch.testing.assert_close(watch.updated()["b"], exact)
    assert watch.weights()["b"].dtype == torch.bfloat16


def test_the_optimizers_of_other_ranks_are_no_masters():
    run = Run()
    other = [nn.Parameter(one.detach().clone()) for one in run.model.parameters()]
    run.optimizer = [run.optimizer, torch.optim.SGD(other, lr=0.5)]
    assert Watch(run).masters == {}


def test_what_the_optimizer_remembers_is_copied_before_the_steps():
    run = ZooRun()
    run.train_step(0)
    watch = Watch(run)
    before = watch.state["norm"]["exp_avg"].clone()
    run.train_step(1)
    assert torch.equal(watch.state["norm"]["exp_avg"], before)
    assert float(watch.state["norm"]["step"]) == 1


def test_a_weight_that_did_not_change_is_not_copied_again():
    run = Run()
    watch = Watch(run)
    first, again = watch.weights(), watch.weights()
    assert first["a"] is again["a"]
    run.model.a.data.add_(1)
    assert watch.weights()["a"] is not first["a"]


def test_a_gradient_scale_that_the_step_undoes_is_undone_in_what_is_seen():
    run, record = Run(), Recorded()
    run.optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5, fused=True)
    give(run, value=8.0)
    run.optimizer.grad_scale, run.optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    with Watch(run).watching(record):
        run.optimizer.step()
    assert record.handed["a"][0] == 1.0
    run.optimizer.found_inf, record = torch.tensor(1.0), Recorded()
    with Watch(run).watching(record):
        run.optimizer.step()
    assert record.handed["a"] is None


def test_a_wrapper_remembers_through_the_optimizers_that_it_holds():
    class Both:
        def __init__(self, *optimizers):
            self.optimizers = optimizers

        @property
        def param_groups(self):
            return [group for one in self.optimizers for group in one.param_groups]

        def step(self):
            for one in self.optimizers:
                one.step()

    run = Run()
    run.optimizer = Both(*(torch.optim.AdamW([one], lr=0.5) for one in run.model.parameters()))
    give(run)
    run.optimizer.step()
    assert set(Watch(run).state["b"]) == {"step", "exp_avg", "exp_avg_sq"}


def test_what_an_optimizer_keeps_in_its_own_way_is_not_read_and_stops_nothing():
    run, record = Run(), Recorded()
    run.optimizer.state = {one: torch.zeros_like(one) for one in run.model.parameters()}
    run.optimizer.param_groups[0]["lr"] = None
    run.optimizer.step = lambda: None
    watch = Watch(run)
    assert watch.state == {"a": None, "b": None}
    with watch.watching(record):
        run.optimizer.step()
    assert record.learning_rate == 0.0


def test_a_closure_is_noticed():
    run, record = Run(), Recorded()
    with Watch(run).watching(record):
        run.optimizer.step(lambda: torch.zeros(()))
    assert record.closure


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_average_goes_by_the_names_of_the_model(wrapped):
    run = Run()
    assert average_of(run) == {}
    run.ema = (
        torch.optim.swa_utils.AveragedModel(run.model) if wrapped else dict(run.model.named_parameters())
    )
    assert set(average_of(run)) == {"a", "b"}


class MainGradients:
    """Sums gradients in `main_grad`, as Megatron does, or somewhere that nobody knows."""

    def __init__(self, model, place="main_grad"):
        self.parameters, self.place = list(model.parameters()), place
        self.param_groups = [{"params": self.parameters, "lr": 0.5}]

    @torch.no_grad()
    def step(self):
        for one in self.parameters:
            one -= 0.5 * getattr(one, self.place)


def test_gradients_that_are_summed_in_main_grad_are_seen():
    run, record = Run(), Recorded()
    run.optimizer = MainGradients(run.model)
    for one in run.model.parameters():
        one.main_grad = torch.full_like(one, 3.0)
    with Watch(run).watching(record):
        run.optimizer.step()
    assert record.handed["b"][1, 1] == 3.0
    assert not record.hidden


def test_weights_that_move_without_a_gradient_have_a_hidden_one():
    run, record = Run(), Recorded()
    run.optimizer = MainGradients(run.model, "elsewhere")
    for one in run.model.parameters():
        one.elsewhere = torch.full_like(one, 3.0)
    with Watch(run).watching(record):
        run.optimizer.step()
    assert record.handed is None
    assert record.hidden


class InBackward:
    """Steps each tensor as soon as its gradient is there, and frees it."""

    def __init__(self, model):
        self.each = {one: torch.optim.SGD([one], lr=0.5) for one in model.parameters()}
        for one in self.each:
            one.register_post_accumulate_grad_hook(self.stepped)

    def stepped(self, parameter):
        self.each[parameter].step()
        parameter.grad = None

    @property
    def param_groups(self):
        return [group for one in self.each.values() for group in one.param_groups]

    def step(self):
        pass


def test_optimizers_that_are_stepped_in_the_backward_are_seen_once_each():
    run, record = Run(), Recorded()
    run.optimizer = InBackward(run.model)
    with Watch(run).watching(record):
        (run.model.a.sum() * 2 + run.model.b.sum()).backward()
        run.optimizer.step()
    assert sorted(name for call in record.calls for name in call) == ["a", "b"]
    assert record.handed["a"][0] == 2.0
    assert record.handed["b"][0, 0] == 1.0


def test_a_step_inside_another_is_one_step():
    class Outer:
        def __init__(self, inner):
            self.inner, self.param_groups = inner, inner.param_groups

        def step(self):
            self.inner.step()

    run, record = Run(), Recorded()
    run.optimizer = Outer(run.optimizer)
    give(run)
    with Watch(run).watching(record):
        run.optimizer.step()
    assert len(record.calls) == 1


def test_weights_that_a_forward_finds_moved_are_noted():
    run, record = ZooRun(), Recorded()
    watch = Watch(run)
    record.weights_before = watch.weights()
    with watch.watching(record):
        run.loss(run.model, run.batch(0))
        assert not record.moved
        with torch.no_grad():
            run.model.blocks[0].q.weight += 0.1
        run.loss(run.model, run.batch(0))
    assert record.moved
