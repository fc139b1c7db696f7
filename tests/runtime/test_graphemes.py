import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mothertongue.graphemes import LONGEST_CLUSTER, GraphemeStream

pieces_of_text = st.lists(st.text(st.sampled_from("কখরযা্ি্ী‌‍েa \n\r\u0301🇧🇩👩👧🏽é。"), max_size=4))


def shown(pieces: list[str]) -> list[str]:
    stream = GraphemeStream()
    return [*(stream.feed(piece) for piece in pieces), stream.flush()]


@pytest.mark.parametrize(
    "cluster",
    ["কি", "ক্ষ", "র‌্য", "স্ত্রী", "ড়ি", "a\u0301", "👩‍👩‍👧", "👧🏽", "🇧🇩", "\r\n", "क्षि", "é"],
)
def test_a_cluster_is_shown_in_one_piece_and_only_when_the_next_begins(cluster: str) -> None:
    stream = GraphemeStream()
    assert "".join(stream.feed(character) for character in "x" + cluster) == "x"
    assert stream.feed("।") == cluster
    assert stream.flush() == "।"


@pytest.mark.parametrize("text", ["কখ", "ab", "ক খ", "a\n", "🇧🇩🇮🇳"])
def test_two_clusters_are_two(text: str) -> None:
    first = "🇧🇩" if "🇮🇳" in text else text[:-1]
    stream = GraphemeStream()
    assert "".join(stream.feed(character) for character in text) == first


@given(pieces=pieces_of_text)
def test_the_pieces_shown_join_to_the_text(pieces: list[str]) -> None:
    assert "".join(shown(pieces)) == "".join(pieces)


@given(pieces=pieces_of_text)
def test_no_piece_begins_with_a_sign_of_the_letter_before_it(pieces: list[str]) -> None:
    seen = ""
    for piece in shown(pieces):
        if piece and seen and seen[-1] not in "\r\n":
            assert not unicodedata.category(piece[0]).startswith("M")
        seen += piece


def test_endless_marks_do_not_stall() -> None:
    stream = GraphemeStream()
    given_out = "".join(stream.feed("\u0301") for _ in range(100))
    assert len(given_out) >= 100 - LONGEST_CLUSTER - 1
