from hypothesis import given
from hypothesis import strategies as st

from mothertongue.stopping import StopStream, overlap

letters = st.text("abক", max_size=12)


@given(pieces=st.lists(letters), stops=st.lists(st.text("abক", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_ends_where_the_first_stop_text_begins(pieces: list[str], stops: list[str]) -> None:
    stream, shown, whole = StopStream(stops), "", ""
    for piece in pieces:
        shown += stream.feed(piece)
        whole += piece
        places = [whole.find(stop) for stop in stops if stop in whole]
        # Seen with its last letter; of those that one piece completes, the first in the text counts.
        assert stream.stopped == bool(places)
        if places:
            assert shown == whole[: min(places)]
            return
    assert shown + stream.flush() == whole


def test_no_letter_of_a_stop_text_is_ever_shown() -> None:
    stream = StopStream(["\nUser:"])
    assert [stream.feed(piece) for piece in ["so\n", "Us", "a\nUser", ":"]] == ["so", "", "\nUsa", ""]
    assert stream.stopped


def test_without_stop_texts_nothing_is_held_back() -> None:
    assert StopStream(()).feed("abc") == "abc"


def test_overlap_counts_the_beginning_of_the_stop_text_at_the_end() -> None:
    assert [overlap(text, "aab") for text in ("", "b", "a", "aa", "aaa", "aab")] == [0, 0, 1, 2, 2, 0]
