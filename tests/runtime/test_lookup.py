from mothertongue.lookup import GUESSES, PAUSE_TOKENS, TRIAL_RUNS, Lookup


def started(prompt: list[int], answer: list[int]) -> Lookup:
    """A lookup that knows what a run without guesses costs, one second, and has since seen `answer`."""
    lookup = Lookup(prompt)
    for token in [*range(900, 900 + TRIAL_RUNS), *answer]:
        lookup.fed([], 1.0)
        lookup.add(token)
    return lookup


def test_what_followed_the_same_tokens_last_is_guessed() -> None:
    lookup = started([1, 2, 3, 40, 41, 9, 1, 2, 3, 50, 51, 8], answer=[1, 2, 3])
    assert lookup.guess(10) == [50, 51, 8, 900][:GUESSES]


def test_a_longer_match_goes_before_a_shorter_one() -> None:
    lookup = started([7, 1, 2, 30, 31, 32, 33, 5, 1, 2, 40], answer=[7, 1, 2])
    assert lookup.guess(10)[0] == 30


def test_a_text_that_repeats_nothing_gives_no_guesses() -> None:
    lookup = started(list(range(100, 120)), answer=[5])
    assert lookup.guess(10) == []


def test_a_text_that_repeats_itself_at_once_is_guessed_on() -> None:
    assert started([5], answer=[7, 8, 7, 8]).guess(10) == [7, 8, 7, 8][:GUESSES]


def test_no_more_is_guessed_than_there_is_room_for() -> None:
    lookup = started([1, 2, 3, 4, 5, 6, 1], answer=[1, 2])
    assert lookup.guess(2) == [3, 4]
    assert lookup.guess(0) == lookup.guess(-1) == []


def test_nothing_is_guessed_before_a_run_without_guesses_was_timed() -> None:
    lookup = Lookup([1, 2, 3, 1, 2])
    assert lookup.guess(10) == []


def trial(lookup: Lookup, seconds: float, tokens: int) -> None:
    """Run `TRIAL_RUNS` times with guesses."""
    for _ in range(TRIAL_RUNS):
        guesses = lookup.guess(10)
        assert guesses
        lookup.fed(guesses, seconds)
        for token in ([1, 2] * tokens)[:tokens]:
            lookup.add(token)


def test_guesses_that_do_not_pay_pause_and_each_pause_is_longer() -> None:
    lookup = started([1, 2] * 6, answer=[1, 2])
    for pause in (PAUSE_TOKENS, 2 * PAUSE_TOKENS):
        trial(lookup, seconds=2.5, tokens=2)  # 1.25 s a token against 1 s
        for number in range(pause):
            assert lookup.guess(10) == [], number
            lookup.add(1 + number % 2)
        assert lookup.guess(10)


def test_guesses_that_pay_go_on() -> None:
    lookup = started([1, 2] * 6, answer=[1, 2])
    for _ in range(5):
        trial(lookup, seconds=1.5, tokens=2)
    assert lookup.guess(10)
