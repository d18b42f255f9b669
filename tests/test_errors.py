"""Messages fit a screen, and no terminal obeys what stands in them."""

from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError, RecipeError, printable, short_message

ANY_TEXT = st.text(st.characters(), max_size=3_000)  # halves of surrogate pairs included


@given(ANY_TEXT, st.integers(1, 2_000))
def test_a_message_is_short_and_printable(text: str, times: int) -> None:
    message = short_message(text * times)
    assert len(message) <= 4_000
    assert all(line.isprintable() or min(line) >= " " for line in message.split("\n") if line)
    message.encode()


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=1_000))
def test_an_ordinary_message_stays_as_it_is(text: str) -> None:
    assert str(InputError(text)) == text


def test_what_is_left_out_is_counted() -> None:
    assert str(RecipeError("a\n" * 99)).endswith("… and 80 more lines")
    assert "… 99100 characters …" in str(InputError("a" * 100_000))
    assert "… 999100 characters …" in str(InputError("a" * 1_000_000))


@given(st.text(max_size=4), st.integers(0, 20_000))
def test_a_line_ends_with_its_own_end_however_much_is_left_out(end: str, length: int) -> None:
    end = printable(end.replace("\n", ""))
    assert short_message("b" + "a" * length + end).endswith("a" * bool(length) + end)


def test_an_escape_sequence_is_shown_as_text() -> None:
    assert str(InputError("mode \x1b[31mred\x1b[0m \ud800")) == "mode \\x1b[31mred\\x1b[0m \\ud800"
