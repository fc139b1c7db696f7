import json
from pathlib import Path

import pytest

from mothertongue.chat import Message
from mothertongue.errors import DataError
from mothertongue_trainer.document import Document, read_documents

PROSE = Document(id="a:1", language="bn", component="prose", text="নদী বয়।\nসাগরে যায়।")
CHAT = Document(
    id="c:2",
    language="bn",
    component="prose",
    messages=(Message("user", "নদী?"), Message("assistant", "river")),
)


def test_documents_survive_a_file(tmp_path: Path) -> None:
    path = tmp_path / "prose.jsonl"
    path.write_text(PROSE.to_json() + "\n" + CHAT.to_json() + "\n", encoding="utf-8")
    assert list(read_documents(path)) == [PROSE, CHAT]


def test_a_line_is_readable_json_with_the_keys_of_the_contract() -> None:
    assert json.loads(PROSE.to_json()) == {"id": "a:1", "language": "bn", "text": PROSE.text}
    assert json.loads(CHAT.to_json())["messages"][1] == {"role": "assistant", "content": "river"}
    assert "নদী" in PROSE.to_json()


def test_characters_are_code_points_of_every_passage() -> None:
    assert PROSE.characters == len("নদী বয়।\nসাগরে যায়।")
    assert CHAT.characters == 4 + 5


def test_a_missing_file_names_the_command_that_makes_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="mothertongue prepare"):
        list(read_documents(tmp_path / "prose.jsonl"))


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"id": "x"}', '{"id":"x","language":"bn","messages":[{"role":"no"}]}']
)
def test_an_altered_file_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prose.jsonl"
    path.write_text(PROSE.to_json() + "\n" + line + "\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"prose\.jsonl:2: not a prepared document"):
        list(read_documents(path))


def test_a_byte_that_is_not_utf_8_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "prose.jsonl"
    path.write_bytes(PROSE.to_json().encode() + b"\n\xff\n")
    with pytest.raises(DataError, match=r"prose\.jsonl: not UTF-8; run `mothertongue prepare`"):
        list(read_documents(path))
