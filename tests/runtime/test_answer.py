import asyncio
import threading
import time
from collections.abc import Callable, Generator

import pytest

from mothertongue import Answer, Message, Model, Sampling, Token

QUESTION = [Message("user", "নদী শব্দের অর্থ কী?")]


def token(text: str) -> Token:
    return Token(text=text, id=7, logprob=-1.0)


class Slow:
    """Writes `count` tokens, each in `pause_s`, and knows whether it was closed."""

    def __init__(self, count: int = 5, pause_s: float = 0.0) -> None:
        self.count, self.pause_s, self.closed, self.made = count, pause_s, False, 0
        self.finished: list[str] = []
        self.answer = Answer(self.write, prompt_tokens=9, finished=self.finished.append)

    def write(self, cancelled: Callable[[], bool]) -> Generator[Token, None, str]:
        try:
            for _ in range(self.count):
                time.sleep(self.pause_s)
                if cancelled():
                    return "cancelled"
                self.made += 1
                yield token("ab")
            return "end"
        finally:
            self.closed = True


def test_an_answer_is_over_with_a_reason_and_its_text() -> None:
    slow = Slow(3)
    assert slow.answer.finish_reason is None
    assert [step.text for step in slow.answer] == ["ab"] * 3
    assert (slow.answer.finish_reason, slow.answer.text, slow.finished) == ("end", "ababab", ["ababab"])
    assert list(slow.answer) == []


def test_cancelling_between_two_tokens_frees_at_once() -> None:
    slow = Slow()
    next(slow.answer)
    slow.answer.cancel()
    assert (slow.closed, slow.answer.finish_reason, slow.finished) == (True, "cancelled", ["ab"])
    assert list(slow.answer) == []


def test_cancelling_an_answer_that_never_began_or_is_over_changes_nothing() -> None:
    never, over = Slow(), Slow(1)
    never.answer.cancel()
    list(over.answer)
    over.answer.cancel()
    assert (never.made, never.answer.finish_reason, over.answer.finish_reason) == (0, "cancelled", "end")


def test_another_thread_can_cancel_a_run_that_is_under_way() -> None:
    slow = Slow(1000, pause_s=0.05)
    timer = threading.Timer(0.12, slow.answer.cancel)
    timer.start()
    start_s = time.monotonic()
    list(slow.answer)
    assert time.monotonic() - start_s < 1.0
    assert (slow.answer.finish_reason, slow.closed) == ("cancelled", True)
    timer.join()


def test_an_error_gives_everything_back_and_leaves_no_reason() -> None:
    def failing(cancelled: Callable[[], bool]) -> Generator[Token, None, str]:
        yield token("a")
        raise RuntimeError("a bug")

    finished: list[str] = []
    answer = Answer(failing, prompt_tokens=1, finished=finished.append)
    next(answer)
    with pytest.raises(RuntimeError, match="a bug"):
        next(answer)
    assert (answer.finish_reason, finished, list(answer)) == (None, ["a"], [])


def test_a_completion_counts_and_times_what_it_is_given() -> None:
    def slow(cancelled: Callable[[], bool]) -> Generator[Token, None, str]:
        time.sleep(0.05)
        yield token("a")
        time.sleep(0.1)
        yield token("b")
        yield token("")
        return "end"

    answer = Answer(slow, prompt_tokens=9).complete()
    assert (answer.text, answer.finish_reason, answer.prompt_tokens, answer.tokens) == ("ab", "end", 9, 3)
    assert 0.05 <= answer.seconds_to_first_token < 0.1
    assert 10 < answer.tokens_per_second <= 20


def test_a_completion_of_nothing_is_no_division_by_zero() -> None:
    slow = Slow()
    slow.answer.cancel()
    completion = slow.answer.complete()
    assert (completion.text, completion.tokens, completion.finish_reason) == ("", 0, "cancelled")


def test_asyncio_reads_the_same_tokens(model: Model) -> None:
    async def read() -> list[int]:
        return [step.id async for step in model.answer(QUESTION, Sampling(max_tokens=8))]

    assert asyncio.run(read()) == [step.id for step in model.answer(QUESTION, Sampling(max_tokens=8))]


def test_the_event_loop_is_not_held_up() -> None:
    async def read() -> int:
        slow, ticks = Slow(4, pause_s=0.05), 0
        reading = asyncio.create_task(slow.answer.acomplete())
        while not reading.done():
            await asyncio.sleep(0.005)
            ticks += 1
        return ticks

    assert asyncio.run(read()) > 5


@pytest.mark.parametrize("whole", [True, False])
def test_a_task_that_is_cancelled_cancels_its_answer(whole: bool) -> None:
    slow = Slow(1000, pause_s=0.02)

    async def read() -> None:
        if whole:
            await slow.answer.acomplete()
        async for _ in slow.answer:
            pass

    async def stopped() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(0.1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    assert slow.answer.finish_reason == "cancelled"
    assert slow.made < 20
