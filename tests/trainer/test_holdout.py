import pytest

from mothertongue_trainer.holdout import is_held_out


def test_the_held_out_share_is_a_share_of_hashes() -> None:
    texts = [str(number) for number in range(20_000)]
    assert sum(is_held_out(text, 2.0) for text in texts) == pytest.approx(400, abs=60)  # three deviations
    assert all(is_held_out(text, 5.0) for text in texts if is_held_out(text, 2.0))
