from hypothesis import example, given
from hypothesis import strategies as st

from llmhostd.text.stop_strings import StopStrings

LETTERS = st.text("ab", min_size=1, max_size=4)


def slow_twin(text: str, stops: list[str]) -> tuple[str, str | None]:
    """Read character by character; the first moment at which the text so far ends with a stop string is the end."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            longest = max(ending, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(pieces=st.lists(st.text("ab", max_size=5)), stops=st.lists(LETTERS, max_size=3))
@example(pieces=["aab", "ab"], stops=["abab", "b"])
def test_any_cut_into_pieces_gives_what_reading_by_character_gives(pieces: list[str], stops: list[str]) -> None:
    matcher = StopStrings(stops)
    shown = "".join(matcher.feed(piece) for piece in pieces) + matcher.flush()
    assert (shown, matcher.matched) == slow_twin("".join(pieces), stops)


@given(pieces=st.lists(st.text("ab", max_size=5)), stops=st.lists(LETTERS, max_size=3))
def test_no_more_is_held_back_than_could_begin_a_stop_string(pieces: list[str], stops: list[str]) -> None:
    matcher, text, shown = StopStrings(stops), "", ""
    for piece in pieces:
        text += piece
        shown += matcher.feed(piece)
        if matcher.matched is None:
            held = text[len(shown) :]
            assert text.startswith(shown)
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_text_that_cannot_begin_a_stop_string_is_shown_at_once() -> None:
    matcher = StopStrings(["\n\nUser:"])
    assert matcher.feed("Hello.\n") == "Hello."
    assert matcher.feed("Next") == "\nNext"
    assert matcher.feed(" line\n\nUs") == " line"
    assert matcher.feed("er: no") == ""
    assert matcher.matched == "\n\nUser:"
    assert matcher.feed("more") == ""
    assert matcher.flush() == ""
