import hashlib

from mothertongue_trainer.holdout import is_held_out

WORDS = [f"শব্দ {number}" for number in range(20_000)]


def test_the_hash_alone_decides() -> None:
    # The definition, written with integers instead of a fraction.
    for word in WORDS[:2000]:
        first = int(hashlib.sha256(word.encode()).hexdigest()[:16], 16)
        assert is_held_out(word, 25.0) == (first * 4 < 2**64)


def test_the_share_is_the_asked_one() -> None:
    share = sum(is_held_out(word, 2.0) for word in WORDS) / len(WORDS)
    assert 0.015 < share < 0.025  # five standard deviations of 20,000 draws


def test_a_larger_share_holds_out_the_same_words_and_more() -> None:
    small = {word for word in WORDS if is_held_out(word, 2.0)}
    assert small < {word for word in WORDS if is_held_out(word, 3.0)}
