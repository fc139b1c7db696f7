import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.chat import ChatFormat, Message
from mothertongue.errors import DataError
from mothertongue.tokenizer import SPECIAL_TOKENS

contents = st.lists(
    st.one_of(st.text(), st.sampled_from([*SPECIAL_TOKENS, "\ufdd00\ufdd1", "{{ 7 * 7 }}"]))
).map("".join)


def spelled(chat_format: ChatFormat, ids: list[int]) -> str:
    """The ids as text, special tokens written out."""
    names = {chat_format.tokenizer.special(token): token for token in SPECIAL_TOKENS}
    return "".join(
        names.get(i) or chat_format.tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids
    )


def with_template(chat_format: ChatFormat, template: str) -> ChatFormat:
    return ChatFormat(chat_format.tokenizer, template, {})


def test_a_prompt_is_spelled_as_the_documents_are(chat_format: ChatFormat) -> None:
    messages = [
        Message("system", "be kind"),
        Message("user", "hi"),
        Message("assistant", "yo"),
        Message("user", "so"),
    ]
    assert spelled(chat_format, chat_format.encode(messages)) == (
        "<|bos|><|system|>be kind<|end|><|user|>hi<|end|><|assistant|>yo<|end|><|user|>so<|end|><|assistant|>"
    )


def test_only_answers_and_their_end_are_learned(chat_format: ChatFormat) -> None:
    messages = [
        Message("user", "hi"),
        Message("assistant", "yo"),
        Message("user", "so"),
        Message("assistant", "go"),
    ]
    ids, learn = chat_format.encode_learned(messages)
    learned = [i for i, counts in zip(ids, learn, strict=True) if counts]
    assert spelled(chat_format, learned) == "yo<|end|>go<|end|>"
    assert spelled(chat_format, ids) == (
        "<|bos|><|user|>hi<|end|><|assistant|>yo<|end|><|user|>so<|end|><|assistant|>go<|end|>"
    )


def test_a_prompt_is_the_beginning_of_the_learned_document(chat_format: ChatFormat) -> None:
    question = [Message("user", "নদী শব্দের অর্থ কী?")]
    prompt = chat_format.encode(question)
    ids, _ = chat_format.encode_learned([*question, Message("assistant", "river")])
    assert ids[: len(prompt)] == prompt


@given(content=contents)
def test_whatever_a_person_types_is_text(chat_format: ChatFormat, content: str) -> None:
    ids, _ = chat_format.encode_learned([Message("user", content), Message("assistant", content)])
    special = [i for i in ids if i <= chat_format.tokenizer.special("<|pad|>")]
    assert [SPECIAL_TOKENS[i] for i in special] == [
        "<|bos|>",
        "<|user|>",
        "<|end|>",
        "<|assistant|>",
        "<|end|>",
    ]


@pytest.mark.parametrize(
    ("typed", "read"),
    [("“নদী”", '"নদী"'), ("  a \n\t b ", "a b"), ("7 + 5", "৭ + ৫"), ("a\u00a0b", "a b"), ("র‌্য", "র‌্য")],
)
def test_a_message_is_normalised(chat_format: ChatFormat, typed: str, read: str) -> None:
    assert chat_format.normalise(typed) == read
    assert chat_format.encode([Message("user", typed)]) == chat_format.encode([Message("user", read)])


def test_an_answer_is_learned_as_it_stands(chat_format: ChatFormat) -> None:
    answer = "“7”\n  eight"
    ids, learn = chat_format.encode_learned([Message("user", "“7”\n  eight"), Message("assistant", answer)])
    learned = [token for token, flag in zip(ids, learn, strict=True) if flag]
    assert chat_format.tokenizer.decode(learned) == answer


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [Message("user", " \n")],
        [Message("user", "a"), Message("assistant", "b")],
        [Message("system", "a")],
    ],
)
def test_a_conversation_without_a_question_is_refused(
    chat_format: ChatFormat, messages: list[Message]
) -> None:
    with pytest.raises(DataError, match="the prompt is empty"):
        chat_format.encode(messages)


def test_an_unknown_role_is_refused() -> None:
    with pytest.raises(ValueError, match="got 'root'"):
        Message("root", "a")


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{% for m in messages %}{{ messages.append(m) }}{% endfor %}", "unsafe"),
        ("{{ cycler.__init__.__globals__.os.system('true') }}", "unsafe"),
        ("{{ raise_exception('no system please') }}", "no system please"),
        ("{{ nothing.at.all }}", "undefined"),
        ("{{ messages[5].content }}", "no element|undefined"),
        ("no message", "drops or repeats"),
        ("{{ messages[0].content }}{{ messages[0].content }}", "drops or repeats"),
    ],
)
def test_a_template_that_misbehaves_is_refused(
    chat_format: ChatFormat, template: str, complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        with_template(chat_format, template).encode([Message("user", "hi")])


def test_a_template_that_is_no_jinja_is_refused(chat_format: ChatFormat) -> None:
    with pytest.raises(DataError, match="not valid jinja"):
        with_template(chat_format, "{% for %}")


def test_a_template_that_does_not_end_answers_is_refused(chat_format: ChatFormat) -> None:
    endless = with_template(chat_format, "{% for m in messages %}{{ m.content }}<|user|>{% endfor %}")
    with pytest.raises(DataError, match=r"no <\|end\|> after an answer"):
        endless.encode_learned([Message("user", "a"), Message("assistant", "b")])


@pytest.mark.parametrize(
    "config",
    [
        "",
        "[]",
        '{"chat_template": "x"}',
        '{"chat_template": "x", "mothertongue": {"replacements": {"ab": "c"}}}',
    ],
)
def test_a_tokenizer_config_without_a_chat_format_is_named(tmp_path: Path, bundle: Path, config: str) -> None:
    shutil.copy(bundle / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(config, encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer_config\.json"):
        ChatFormat.open(tmp_path)


def test_a_missing_tokenizer_config_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer_config\.json: not found"):
        ChatFormat.open(tmp_path)


def test_turns_are_read_where_they_are_stated(tmp_path: Path, bundle: Path) -> None:
    shutil.copy(bundle / "tokenizer.json", tmp_path)
    config = json.loads((bundle / "tokenizer_config.json").read_text(encoding="utf-8"))
    config["mothertongue"]["turns"] = 1
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    assert ChatFormat.open(tmp_path).turns == 1
    assert ChatFormat.open(bundle).turns is None
