"""Messages fit a screen, and no terminal obeys what stands in them."""

from hypothesis import given
from hypothesis import strategies as st

from arl.errors import InputError, RecipeError


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=1_000))
def test_an_ordinary_message_stays_as_it_is(text: str) -> None:
    assert str(InputError(text)) == text


def test_what_is_left_out_is_counted() -> None:
    assert str(RecipeError("a\n" * 99)).endswith("… and 80 more lines")
    assert "… 99000 characters …" in str(InputError("a" * 100_000))
    assert "… 999000 characters …" in str(InputError("a" * 1_000_000))


def test_an_escape_sequence_is_shown_as_text() -> None:
    assert str(InputError("mode \x1b[31mred\x1b[0m \ud800")) == "mode \\x1b[31mred\\x1b[0m \\ud800"
