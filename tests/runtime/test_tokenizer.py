import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from mothertongue.chat import ChatFormat
from mothertongue.errors import DataError
from mothertongue.tokenizer import SPECIAL_TOKENS, Tokenizer, common_prefix

# Code points that this Python does not know may be composed by a newer Unicode in the tokenizer.
known_text = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cn"]))
text_with_specials = st.lists(st.one_of(st.text(), st.sampled_from(SPECIAL_TOKENS))).map("".join)


@pytest.fixture(scope="module")
def tokenizer(chat_format: ChatFormat) -> Tokenizer:
    return chat_format.tokenizer


@given(text=known_text)
def test_any_text_comes_back_in_nfc(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("text", ["ড়ঢ়য়", "র‌্য ক্‍ষ", "ক্ষ", "\ufffd", "a\u0301", "👩‍👩‍👧", "\0"])
def test_a_hard_text_comes_back_in_nfc(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@given(text=text_with_specials)
def test_text_from_people_never_becomes_a_special_token(tokenizer: Tokenizer, text: str) -> None:
    special = {tokenizer.special(token) for token in SPECIAL_TOKENS}
    assert not special & set(tokenizer.encode(text))


def test_our_own_text_becomes_special_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode_with_specials("<|user|>a<|end|>")
    assert ids == [tokenizer.special("<|user|>"), *tokenizer.encode("a"), tokenizer.special("<|end|>")]


def test_special_tokens_have_the_first_ids_and_no_bytes(tokenizer: Tokenizer) -> None:
    assert [tokenizer.special(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3, 4, 5]
    assert {tokenizer.token_bytes(token_id) for token_id in range(6)} == {b""}
    assert tokenizer.token_bytes(10**6) == b""


@given(data=st.data())
def test_any_ids_decode_as_the_library_decodes_them(
    tokenizer: Tokenizer, bundle: Path, data: st.DataObject
) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1)))
    oracle = Backend.from_file(str(bundle / "tokenizer.json"))
    assert tokenizer.decode(ids) == oracle.decode(ids, skip_special_tokens=True)


@given(data=st.data())
def test_streamed_pieces_join_to_the_decoded_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary - 1)))
    stream = tokenizer.stream()
    pieces = [stream.feed(token_id) for token_id in ids] + [stream.flush()]
    assert "".join(pieces) == tokenizer.decode(ids)


@given(text=known_text)
def test_streaming_valid_text_never_shows_a_broken_character(tokenizer: Tokenizer, text: str) -> None:
    stream = tokenizer.stream()
    pieces = [stream.feed(token_id) for token_id in tokenizer.encode(text)] + [stream.flush()]
    assert "".join(pieces).count("\ufffd") == text.count("\ufffd")


def test_a_character_in_three_tokens_is_shown_when_it_is_whole(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("€")
    assert [tokenizer.token_bytes(token_id) for token_id in ids] == [b"\xe2", b"\x82", b"\xac"]
    stream = tokenizer.stream()
    assert [stream.feed(token_id) for token_id in ids] == ["", "", "€"]


def test_bytes_that_were_no_text_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match="not UTF-8"):
        tokenizer.encode("a\ud800")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"tokenizer\.json: not found"):
        Tokenizer.open(tmp_path)


def test_a_broken_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.open(tmp_path)


def test_a_tokenizer_without_our_special_tokens_is_refused(tmp_path: Path, bundle: Path) -> None:
    text = (bundle / "tokenizer.json").read_text(encoding="utf-8").replace("<|pad|>", "<|fill|>")
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=r"tokenizer\.json: the tokenizer has no <\|pad\|>"):
        Tokenizer.open(tmp_path)


def test_common_prefix_counts_equal_ids() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2
    assert common_prefix([1, 2], [1, 2, 3]) == 2
    assert common_prefix([], [1]) == 0
