import pytest

from mothertongue import DataError, Message, Model
from mothertongue.conversation import Conversation


def said(conversation: Conversation) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in conversation.messages]


def test_a_question_and_its_answer_are_remembered(model: Model) -> None:
    conversation = Conversation(model, system="be kind", max_tokens=3)
    answer = "".join(piece.text for piece in conversation.ask("নদী?"))
    assert said(conversation) == [("system", "be kind"), ("user", "নদী?"), ("assistant", answer)]


def test_a_reset_leaves_the_system_message(model: Model) -> None:
    conversation = Conversation(model, system="be kind", max_tokens=3)
    list(conversation.ask("নদী?"))
    conversation.reset()
    assert said(conversation) == [("system", "be kind")]


def test_an_answer_broken_off_is_remembered_as_far_as_it_came(model: Model) -> None:
    conversation = Conversation(model)
    answer = conversation.ask("নদী?")
    heard = ""
    while not heard.strip():
        heard += next(answer).text
    answer.close()
    assert said(conversation) == [("user", "নদী?"), ("assistant", heard)]


def test_an_interrupted_question_without_an_answer_is_forgotten(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(ids: list[int]) -> None:
        raise KeyboardInterrupt

    conversation = Conversation(model)
    monkeypatch.setattr(model.session, "feed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(conversation.ask("নদী?"))
    assert said(conversation) == []


def test_the_oldest_turns_make_room_and_are_counted(model: Model) -> None:
    conversation = Conversation(model, max_tokens=8)
    for number in range(8):
        list(conversation.ask(f"নদী {number}?"))
        assert len(model.format.encode([*conversation.messages[:-1]])) <= model.session.context * 3 // 4
    assert conversation.forgotten_turns >= 1
    assert conversation.messages[0].role == "user"
    assert conversation.messages[-2].content == "নদী 7?"


def test_a_question_too_long_is_refused_and_nothing_is_forgotten(model: Model) -> None:
    conversation = Conversation(model, max_tokens=3)
    list(conversation.ask("নদী?"))
    before = said(conversation)
    with pytest.raises(DataError, match="shorten it"):
        list(conversation.ask("ন" * 500))
    assert said(conversation) == before
    assert conversation.forgotten_turns == 0


def test_a_model_taught_single_turns_is_asked_in_single_turns(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.format, "turns", 1)
    conversation = Conversation(model, system="s", max_tokens=3)
    list(conversation.ask("one"))
    answer = "".join(piece.text for piece in conversation.ask("two"))
    assert conversation.messages == [
        Message("system", "s"),
        Message("user", "two"),
        Message("assistant", answer),
    ]
    assert conversation.forgotten_turns == 0
