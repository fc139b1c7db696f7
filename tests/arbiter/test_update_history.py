from dataclasses import replace

import numpy as np
import pytest
import torch

from mothertongue_arbiter.declared_optimizer import Group
from mothertongue_arbiter.update_history import Event, History, forgetting, judge, replay, with_rates
from mothertongue_arbiter.update_rules import Moments

EPSILON = 2.0**-23
SGD = Group(parameters=("*",), algorithm="sgd", learning_rate=0.5)


def history(*, epsilon=EPSILON, keep=lambda value: value, rate=0.5, steps=3, size=1.0):
    """Plain SGD, done by hand."""
    rng = np.random.default_rng(0)
    weight, events = keep(rng.normal(size=(8, 4))), []
    for step in range(steps):
        gradient = size * rng.normal(size=(8, 4))
        after = keep(weight - rate * gradient)
        events.append(Event(step=step, rate=0.5, before=weight, after=after, gradient=gradient))
        weight = after
    return History(name="w", group=SGD, events=tuple(events), start=Moments(), epsilon=epsilon)


def test_a_rule_that_was_followed_is_good_and_resolved():
    found = judge(history())
    assert found.good
    assert found.resolved
    assert found.ratio < 1e-6


def test_a_difference_beyond_rounding_is_not_good_and_tells_its_step():
    found = history()
    last = found.events[-1]
    spoiled = replace(last, after=last.after + np.eye(8, 4) * 1e-4)
    found = judge(replace(found, events=(*found.events[:-1], spoiled)))
    assert not found.good
    assert found.step == 2
    assert found.off == pytest.approx(1e-4 * 2 / np.linalg.norm(last.after - last.before))


def test_the_rounding_of_float32_weights_is_forgiven_and_nothing_more():
    def keep(value):
        return value.astype(np.float32).astype(float)

    assert judge(history(keep=keep)).good
    assert not judge(history(keep=keep, epsilon=2.0**-52)).good


def test_an_element_of_a_million_that_is_not_updated_is_seen():
    rng = np.random.default_rng(1)
    before, gradient = rng.normal(size=10**6), rng.normal(size=10**6)
    after = before - 1e-2 * gradient
    after[123] = before[123]
    event = Event(step=0, rate=1e-2, before=before, after=after, gradient=gradient)
    found = History(name="w", group=SGD, events=(event,), start=Moments(), epsilon=EPSILON)
    assert not judge(found).good


def test_updates_below_half_a_spacing_of_bfloat16_are_lost():
    from mothertongue_arbiter.update_rules import bfloat16

    found = judge(history(keep=bfloat16, epsilon=2.0**-7, size=1e-5))
    assert found.ratio <= 1
    assert found.lost
    assert not found.good


def test_a_weight_that_never_changes_is_still():
    found = history()
    events = tuple(replace(event, after=event.before) for event in found.events)
    assert judge(replace(found, events=events)).still


def test_without_a_gradient_no_change_is_asked():
    found = history()
    events = tuple(replace(event, gradient=None, after=event.before) for event in found.events)
    found = judge(replace(found, events=events))
    assert found.good
    assert not found.asked


MUON = Group(
    parameters=("*",), algorithm="muon", learning_rate=0.02, weight_decay=0.1, momentum=0.95, nesterov=True
)


def muon_history(*, rank, shape, seed, decay=0.1, rate=0.02):
    """Three bfloat16 steps of torch.optim.Muon, whose momenta leave most directions open."""
    rng = np.random.default_rng(seed)
    parameter = torch.nn.Parameter(torch.tensor(rng.normal(size=shape) * 0.02, dtype=torch.float32))
    optimizer = torch.optim.Muon([parameter], lr=rate, weight_decay=decay, adjust_lr_fn="original")
    events = []
    for step in range(3):
        spread = np.exp(2 * rng.normal(size=rank))
        gradient = rng.normal(size=(shape[0], rank)) * spread @ rng.normal(size=(rank, shape[1]))
        parameter.grad = torch.tensor(gradient, dtype=torch.float32)
        before = parameter.detach().double().numpy().copy()
        optimizer.step()
        after = parameter.detach().double().numpy().copy()
        given = parameter.grad.double().numpy()
        events.append(Event(step=step, rate=0.02, before=before, after=after, gradient=given))
    return History(name="w", group=MUON, events=tuple(events), start=Moments(), epsilon=EPSILON)


@pytest.mark.parametrize("shape", [(8, 8), (8, 32), (32, 16)])
def test_directions_without_gradient_hold_only_the_noise_of_bfloat16_muon(shape):
    ranks = range(1, 9)
    found = [judge(muon_history(rank=rank, shape=shape, seed=seed)) for rank in ranks for seed in range(3)]
    assert all(one.good for one in found), max(one.ratio for one in found)


def test_a_muon_step_of_another_length_or_decay_is_more_than_noise():
    assert judge(muon_history(rank=16, shape=(64, 64), seed=0)).good
    assert not judge(muon_history(rank=16, shape=(64, 64), seed=0, rate=0.025)).good
    assert not judge(muon_history(rank=2, shape=(64, 64), seed=0, rate=0.04)).good
    assert not judge(muon_history(rank=16, shape=(64, 64), seed=0, decay=1.0)).good


def test_not_a_number_is_never_good():
    found = history()
    bad = replace(found.events[0], after=found.events[0].after * np.nan)
    assert not judge(replace(found, events=(bad, *found.events[1:]))).good


def test_other_rates_are_another_history():
    found = with_rates(history(rate=0.25), [0.25] * 3)
    assert judge(found).good
    assert not judge(history(rate=0.25)).good
    assert [one.event.rate for one in replay(found)] == [0.25] * 3


def with_masters(*, size, reads_again=False, carried=False):
    """SGD on float32 masters whose bfloat16 copies are all that is seen."""
    rng = np.random.default_rng(0)
    master = torch.tensor(rng.normal(size=(64, 16)))
    weight, events = master.bfloat16(), []
    master = master if carried else weight.double()
    for step in range(3):
        gradient = torch.tensor(size * rng.normal(size=(64, 16)))
        before = weight.double().numpy()
        master = (weight.double() if reads_again else master) - 0.5 * gradient
        weight = master.bfloat16()
        after = weight.double().numpy()
        events.append(Event(step=step, rate=0.5, before=before, after=after, gradient=gradient.numpy()))
    return History(
        name="w", group=SGD, events=tuple(events), start=Moments(), epsilon=2.0**-7, hidden_master=True
    )


@pytest.mark.parametrize("size", [1e-4, 1e-3, 1e-2, 0.3])
def test_masters_that_are_read_again_from_their_rounded_copies_are_told_from_kept_ones(size):
    forgotten, others = forgetting(with_masters(size=size, reads_again=True))
    assert others == 0
    assert forgotten >= 32 or size < 1e-3  # so small that hardly a copy moves
    forgotten, others = forgetting(with_masters(size=size))
    assert forgotten == 0
    forgotten, others = forgetting(with_masters(size=size, carried=True))
    assert others > 0.3 * forgotten
