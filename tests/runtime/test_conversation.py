import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mothertongue import BundleError, Chat, DataError, Model, Sampling, load
from mothertongue.session import Session

THREE = Sampling(max_tokens=3)


def said(chat: Chat) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in chat.messages]


def test_a_question_and_its_answer_are_remembered(model: Model) -> None:
    chat = model.chat(system="be kind", sampling=Sampling(max_tokens=6))
    answer = "".join(token.text for token in chat.say("নদী?"))
    assert said(chat) == [("system", "be kind"), ("user", "নদী?"), ("assistant", answer)]


def test_a_reset_leaves_the_system_message(model: Model) -> None:
    chat = model.chat(system="be kind", sampling=THREE)
    list(chat.say("নদী?"))
    chat.reset()
    assert said(chat) == [("system", "be kind")]


def test_an_answer_broken_off_is_remembered_as_far_as_it_came(model: Model) -> None:
    chat = model.chat()
    answer = chat.say("নদী?")
    heard = ""
    while not heard.strip():
        heard += next(answer).text
    answer.cancel()
    assert (said(chat), answer.finish_reason) == ([("user", "নদী?"), ("assistant", heard)], "cancelled")


def test_an_interrupted_question_without_an_answer_is_forgotten(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Session, ids: list[int], logits: object) -> None:
        raise KeyboardInterrupt

    chat = model.chat()
    monkeypatch.setattr(Session, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(chat.say("নদী?"))
    assert said(chat) == []


def test_speaking_again_cancels_the_answer_that_is_on_its_way(model: Model) -> None:
    chat = model.chat(sampling=THREE)
    first = chat.say("নদী?")
    list(chat.say("জল?"))
    assert first.finish_reason == "cancelled"
    assert [content for role, content in said(chat) if role == "user"] == ["জল?"]


def test_the_oldest_turns_make_room_and_are_counted(model: Model) -> None:
    chat = model.chat(system="s", sampling=Sampling(max_tokens=6))
    forgotten = 0
    for number in range(6):
        answer = chat.say(f"নদী {number}?")
        list(answer)
        forgotten += answer.forgotten_turns
        assert len(model.format.encode([*chat.messages[:-1]])) <= model.context * 3 // 4
    assert forgotten >= 1
    assert [message.role for message in chat.messages[:2]] == ["system", "user"]
    assert chat.messages[-2].content == "নদী 5?"


def test_overflow_can_be_an_error_that_forgets_nothing(model: Model) -> None:
    chat = model.chat(sampling=Sampling(max_tokens=6), overflow="error")
    for _ in range(2):
        list(chat.say("নদী?"))
    before = said(chat)
    with pytest.raises(DataError, match="the model reads at most 63; shorten it"):
        chat.say("নদী শব্দ " * 6)
    assert said(chat) == before
    assert len(before) == 4


def test_an_unknown_policy_is_refused(model: Model) -> None:
    with pytest.raises(ValueError, match="overflow must be one of drop, error, got 'shift'"):
        model.chat(overflow="shift")  # type: ignore[arg-type]


def test_a_question_too_long_is_refused_and_nothing_is_forgotten(model: Model) -> None:
    chat = model.chat(sampling=THREE)
    list(chat.say("নদী?"))
    before = said(chat)
    with pytest.raises(DataError, match="shorten it"):
        chat.say("ন" * 500)
    assert said(chat) == before


def test_a_model_taught_single_turns_is_asked_in_single_turns(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.format, "turns", 1)
    chat = model.chat(system="s", sampling=Sampling(max_tokens=6))
    list(chat.say("one"))
    second = chat.say("two")
    answer = "".join(token.text for token in second)
    assert said(chat) == [("system", "s"), ("user", "two"), ("assistant", answer)]
    assert second.forgotten_turns == 0


def test_a_restored_conversation_goes_on_as_if_it_had_never_stopped(
    model: Model, bundle: Path, tmp_path: Path
) -> None:
    path = tmp_path / "কথা ১.json"
    chat = model.chat(system="দয়ালু", sampling=Sampling(max_tokens=6))
    list(chat.say("নদী?"))
    chat.save(path)
    uninterrupted = [token.id for token in chat.say("আর?")]
    other = load(bundle, threads=1).chat(sampling=Sampling(max_tokens=6))
    other.restore(path)
    assert [token.id for token in other.say("আর?")] == uninterrupted
    assert said(other) == said(chat)
    assert [path.name for path in tmp_path.iterdir()] == ["কথা ১.json"]


def test_a_conversation_with_another_model_is_refused(model: Model, tmp_path: Path) -> None:
    path = tmp_path / "chat.json"
    model.chat(system="s").save(path)
    content = json.loads(path.read_text(encoding="utf-8"))
    content["model_sha256"] = "0" * 64
    path.write_text(json.dumps(content), encoding="utf-8")
    chat = model.chat(system="mine")
    with pytest.raises(
        BundleError, match=rf"the model 0{{12}}, this one is {model.manifest.model_sha256[:12]}"
    ):
        chat.restore(path)
    assert said(chat) == [("system", "mine")]


def damaged(change: Callable[[dict[str, Any]], object]) -> str:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    content: dict[str, Any] = {"version": 1, "model_sha256": "0", "messages": messages}
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        damaged(lambda content: content.pop("messages")),
        damaged(lambda content: content.update(version=2)),
        damaged(lambda content: content["messages"].pop()),
        damaged(lambda content: content["messages"][0].update(role="root")),
        damaged(lambda content: content["messages"][0].update(content=7)),
        damaged(lambda content: content["messages"].reverse()),
    ],
)
def test_a_file_that_is_no_conversation_is_named(model: Model, tmp_path: Path, text: str) -> None:
    (tmp_path / "chat.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"chat\.json: not a saved conversation"):
        model.chat().restore(tmp_path / "chat.json")


def test_a_missing_file_is_named(model: Model, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such conversation"):
        model.chat().restore(tmp_path / "none.json")
