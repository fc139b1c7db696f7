import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.chat import ChatFormat
from mothertongue.pieces import Pieces


def shown(
    chat_format: ChatFormat, ids: list[int], *, stops: tuple[str, ...] = (), graphemes: bool
) -> list[str]:
    pieces = Pieces(chat_format.tokenizer, stops, graphemes=graphemes)
    texts = []
    for token in ids:
        texts.append(pieces.feed(token))
        if pieces.stopped:
            break
    return [*texts, pieces.flush()]


@given(ids=st.lists(st.integers(0, 383)), graphemes=st.booleans())
def test_pieces_of_random_ids_join_to_the_decoded_text(
    chat_format: ChatFormat, ids: list[int], graphemes: bool
) -> None:
    assert "".join(shown(chat_format, ids, graphemes=graphemes)) == chat_format.tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 383)), stop=st.text(min_size=1, max_size=3), graphemes=st.booleans())
def test_a_stop_text_ends_the_text_before_it(
    chat_format: ChatFormat, ids: list[int], stop: str, graphemes: bool
) -> None:
    text = chat_format.tokenizer.decode(ids)
    found = "".join(shown(chat_format, ids, stops=(stop,), graphemes=graphemes))
    assert found == text.partition(stop)[0]


@pytest.mark.parametrize("graphemes", [False, True])
def test_a_literal_replacement_character_does_not_stall(chat_format: ChatFormat, graphemes: bool) -> None:
    ids = chat_format.tokenizer.encode("a\ufffdb\ufffd\ufffd।")
    texts = shown(chat_format, ids, graphemes=graphemes)
    assert "".join(texts) == "a\ufffdb\ufffd\ufffd।"
    assert texts[-1] == ("।" if graphemes else "")  # all else was shown as soon as it could be


def test_a_vowel_sign_is_never_shown_apart_from_its_letter(chat_format: ChatFormat) -> None:
    ids = [i for letter in "কি" for i in chat_format.tokenizer.encode(letter)]
    assert [text for text in shown(chat_format, ids, graphemes=False) if text] == ["ক", "ি"]
    assert [text for text in shown(chat_format, ids, graphemes=True) if text] == ["কি"]


def test_text_that_ends_within_a_character_is_flushed(chat_format: ChatFormat) -> None:
    ids = chat_format.tokenizer.encode("€")[:2]
    assert "".join(shown(chat_format, ids, graphemes=True)) == "\ufffd"
