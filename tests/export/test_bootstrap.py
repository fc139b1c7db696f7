import numpy as np
import pytest

from mothertongue_export.bootstrap import RESAMPLES, ratio_interval, resampled_ratios


def test_the_interval_covers_a_known_mean_as_often_as_it_says() -> None:
    """200 samples of 40 documents from a population whose ratio is 2; 95 % of intervals should hold it."""
    generator = np.random.default_rng(0)
    held = 0
    for _ in range(200):
        bytes_ = generator.uniform(50, 150, size=40)
        bits = 2 * bytes_ + generator.normal(scale=20, size=40)
        low, high = ratio_interval(list(bits), list(bytes_))
        held += low <= 2 <= high
    assert 180 <= held <= 198


def test_one_document_has_an_interval_of_no_width() -> None:
    assert ratio_interval([3.0], [2.0]) == (1.5, 1.5)


def test_the_same_documents_give_the_same_resamples() -> None:
    first, second = (resampled_ratios([1.0, 2.0, 4.0], [1.0, 1.0, 1.0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (RESAMPLES,)
    assert first.mean() == pytest.approx(7 / 3, abs=0.1)
