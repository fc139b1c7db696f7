import gzip
import json
import lzma
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest

from mothertongue.errors import DataError
from mothertongue_trainer.document import Document
from mothertongue_trainer.files import matching_paths, read_files
from mothertongue_trainer.recipe import FilesConfig


def read(*paths: Path | str, name: str = "mine") -> list[Document]:
    return list(read_files([FilesConfig(name=name, language="bn", paths=tuple(map(str, paths)))]))


def test_a_txt_file_is_one_document(tmp_path: Path) -> None:
    path = tmp_path / "বই ১.txt"
    path.write_text("প্রথম লাইন\n\nদ্বিতীয় লাইন\n", encoding="utf-8")
    (document,) = read(path)
    assert document == Document(
        id=str(path),
        language="bn",
        component="mine",
        text=unicodedata.normalize("NFC", "প্রথম লাইন\n\nদ্বিতীয় লাইন"),
    )


@pytest.mark.parametrize(("suffix", "opener"), [("", open), (".gz", gzip.open), (".xz", lzma.open)])
def test_each_line_of_a_jsonl_file_is_a_document(
    tmp_path: Path, suffix: str, opener: Callable[..., object]
) -> None:
    path = tmp_path / f"texts.jsonl{suffix}"
    with opener(path, "wt", encoding="utf-8") as file:  # type: ignore[attr-defined]
        file.write('{"text": "এক"}\n\n{"text": "two", "more": 1}\n')
    assert [(d.id, d.text) for d in read(path)] == [(f"{path}:1", "এক"), (f"{path}:3", "two")]


def test_a_conversation_keeps_its_messages(tmp_path: Path) -> None:
    path = tmp_path / "chat.jsonl"
    turns = [("system", "s"), ("user", "u"), ("assistant", "a"), ("user", "v"), ("assistant", "b")]
    path.write_text(json.dumps({"messages": [{"role": r, "content": c} for r, c in turns]}), encoding="utf-8")
    (document,) = read(path)
    assert [(m.role, m.content) for m in document.messages] == turns


def test_text_is_nfc_and_joiners_stay(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("e\u0301 \u09dc র\u200d্যাব", encoding="utf-8")  # ড় as one code point decomposes in NFC
    assert read(path)[0].text == "\u00e9 \u09a1\u09bc র\u200d্যাব"


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfabc")
    assert read(path)[0].text == "abc"


def test_an_exact_repetition_is_read_once_even_across_components(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "caf\\u00e9"}\n{"text": "other"}\n{"text": "cafe\\u0301"}\n', encoding="utf-8")
    configs = [FilesConfig(name=name, language="fr", paths=(str(path),)) for name in ("one", "two")]
    assert [(d.component, d.text) for d in read_files(configs)] == [("one", "café"), ("one", "other")]


def test_patterns_are_sorted_and_a_file_named_twice_is_read_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "sub/c.txt", "[1].txt"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name, encoding="utf-8")
    texts = [d.text for d in read(tmp_path / "[1].txt", tmp_path / "**/*.txt", tmp_path / "a.txt")]
    assert texts == ["[1].txt", "a.txt", "b.txt", "sub/c.txt"]


# The first byte after the header: a bad block.
FLIPPED = bytearray(gzip.compress(bytes(range(256)) * 40, mtime=0))
FLIPPED[10] ^= 0xFF


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "no text in it"),
        ("a.txt", b" \n\t", "no text in it"),
        ("a.jsonl", b"\n\n", "no text in it"),
        ("a.txt", b"ab\xffcd", "not UTF-8 at byte 2"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": "\xe0\xa6"}', "not UTF-8 at byte 25"),
        ("a.jsonl", b'{"text": "ok"}\n{"text": ', r"a\.jsonl:2: not JSON"),
        ("a.jsonl", b'{"content": "ok"}', r'a\.jsonl:1: \{"text": "..."\} or .* expected'),
        ("a.jsonl", b'{"text": 7}', r"a\.jsonl:1: .* expected"),
        ("a.jsonl", b'["text"]', r"a\.jsonl:1: .* expected"),
        ("a.jsonl", b'{"text": "\\ud800"}', r"a\.jsonl:1: half a surrogate pair"),
        ("a.jsonl", b'{"messages": [{"role": "user"}]}', r"a\.jsonl:1: messages need"),
        ("a.jsonl", b'{"messages": [{"role": "boss", "content": "x"}]}', r"a\.jsonl:1: messages need"),
        ("a.jsonl", b'{"messages": "hello"}', r"a\.jsonl:1: messages need"),
        ("a.jsonl", b'{"messages": []}', r"a\.jsonl:1: roles are none"),
        ("a.jsonl", b'{"messages": [{"role": "user", "content": "x"}]}', r"a\.jsonl:1: roles are user; "),
        ("a.txt.gz", b"plain", "damaged or not gz-compressed"),
        ("a.txt.xz", b"plain", "damaged or not xz-compressed"),
        ("a.txt.gz", gzip.compress(b"x" * 1000, mtime=0)[:-9], "damaged or not gz-compressed"),
        ("a.txt.gz", FLIPPED, "damaged or not gz-compressed"),
        ("a.pdf", b"%PDF", r"\.txt or \.jsonl expected"),
    ],
)
def test_bad_input_is_one_line_with_its_place(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nothing-\*\.txt: no such file \(corpus\.files 'mine'\)"):
        matching_paths(FilesConfig(name="mine", language="bn", paths=(str(tmp_path / "nothing-*.txt"),)))
    with pytest.raises(DataError, match="no such file"):
        matching_paths(FilesConfig(name="mine", language="bn", paths=(str(tmp_path),)))
    with pytest.raises(DataError, match="no paths"):
        matching_paths(FilesConfig(name="mine", language="bn", paths=()))
