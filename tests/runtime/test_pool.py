from pathlib import Path

import pytest

from mothertongue import MothertongueError
from mothertongue.pool import SessionPool
from mothertongue.session import Engine


@pytest.fixture(scope="module")
def engine(bundle: Path) -> Engine:
    return Engine.open(bundle, threads=1)


def test_an_answer_gets_the_cache_that_holds_most_of_its_prompt(engine: Engine) -> None:
    pool = SessionPool(engine, limit=2)
    with pool.borrow([1, 2, 3]) as first, pool.borrow([1, 2, 3]) as second:
        first.feed([10, 11, 12])
        second.feed([20, 21])
    with pool.borrow([20, 21, 22]) as found:
        assert found is second
    with pool.borrow([10, 11]) as found:
        assert found is first


def test_a_long_conversation_is_kept_beside_another_one_while_there_is_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mothertongue.pool.WORTH_KEEPING_TOKENS", 4)
    pool = SessionPool(engine, limit=2)
    conversation, other = list(range(10, 20)), list(range(30, 40))
    with pool.borrow(conversation) as first:
        first.feed(conversation)
    with pool.borrow(other) as second:
        assert second is not first
        second.feed(other)
    with pool.borrow([*conversation, 5]) as found:
        assert found is first
    with pool.borrow([50, 51]) as found:  # no room is left: the one used longest ago makes way
        assert found is second


def test_one_answer_more_than_allowed_is_refused_with_the_number(engine: Engine) -> None:
    pool = SessionPool(engine, limit=2)
    refused = pytest.raises(
        MothertongueError,
        match=r"as many answers are being written as this model was loaded for: 2;.*sessions=4",
    )
    with pool.borrow([1]), pool.borrow([1]), refused, pool.borrow([1]):
        pass
    with pool.borrow([1]):
        pass


def test_a_session_that_cannot_be_made_counts_as_none(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = SessionPool(engine, limit=1)
    with monkeypatch.context() as patch:
        patch.setattr(engine, "session", lambda: 1 / 0)
        with pytest.raises(ZeroDivisionError), pool.borrow([1]):
            pass
    with pool.borrow([1]):
        pass


def test_fewer_than_one_session_is_refused(engine: Engine) -> None:
    with pytest.raises(ValueError, match="sessions must be at least 1, got 0"):
        SessionPool(engine, limit=0)
