import math

import numpy as np
import pytest

from mothertongue_arbiter.watches import BatchWatch, LossWatch, ScaleWatch


def losses(count):
    rng = np.random.default_rng(0)
    return [4.0 - 0.01 * i + 0.1 * rng.standard_normal() for i in range(count)]


def verdicts(findings):
    return [finding.verdict for finding in findings]


def test_a_noisy_falling_loss_has_no_spike():
    watch = LossWatch()
    assert [watch.look(step, loss) for step, loss in enumerate(losses(300))] == [[]] * 300


def test_a_spike_is_told_once_however_long_it_lasts():
    watch = LossWatch()
    told = [watch.look(step, loss) for step, loss in enumerate([*losses(60), 9.0, 9.0, 9.0, *losses(5)])]
    assert [(step, verdicts(found)) for step, found in enumerate(told) if found] == [(60, ["SPIKE"])]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_told(loss):
    assert verdicts(LossWatch().look(0, loss)) == ["NONFINITE"]


def test_the_same_rows_in_another_order_are_the_same_batch():
    watch = BatchWatch(None)
    assert watch.look(0, np.array([5, 7, 9])) == []
    assert verdicts(watch.look(4, np.array([9, 5, 7]))) == ["REPEATED"]


def test_one_pair_in_a_large_batch_is_no_fault_and_padding_never_is():
    watch = BatchWatch(None)
    assert watch.look(0, np.array([*range(1, 20), 1])) == []
    assert watch.look(1, np.zeros(8, dtype=np.int64)) == []
    assert watch.look(2, np.zeros(8, dtype=np.int64)) == []
    assert verdicts(watch.look(3, np.array([1, 1, 2, 3]))) == ["DUPLICATED"]


def test_a_batch_that_comes_again_within_its_epoch_is_told():
    watch = BatchWatch(10)
    assert watch.look(0, np.array([5, 7])) == []
    assert watch.look(10, np.array([5, 7])) == []
    assert verdicts(watch.look(19, np.array([5, 7]))) == ["REPEATED"]


def test_a_loss_scale_below_one_has_collapsed():
    watch = ScaleWatch()
    assert watch.look(0, 65536.0) == watch.look(1, 1.0) == []
    assert verdicts(watch.look(2, 0.5)) == ["COLLAPSED"]
    assert watch.lowest == 0.5
