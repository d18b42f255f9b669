"""Equal questions in another spelling have one key; other questions have another."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from arl.data.row_problems import prompt_key, question_key

WORDS = st.lists(st.text(string.ascii_letters, min_size=1, max_size=8), min_size=1, max_size=8)


@given(WORDS, st.sampled_from([" ", "  ", "\n", "\t ", "\u00a0"]), st.sampled_from(["", ".", "?", "!", "?!"]))
def test_space_case_and_the_punctuation_of_a_sentence_do_not_matter(words: list[str], space: str, end: str) -> None:
    plain = " ".join(words)
    other = space.join(words).upper() + end
    assert question_key(f" {other} ") == question_key(plain)


@given(st.lists(st.integers(0, 10**6), min_size=1), st.lists(st.integers(0, 10**6), min_size=1))
def test_other_numbers_make_another_question(one: list[int], other: list[int]) -> None:
    texts = [f"Add {', '.join(map(str, numbers))}." for numbers in (one, other)]
    assert (question_key(texts[0]) == question_key(texts[1])) == (one == other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Find $x^2$ for x = 3.", "find x^2 for x = 3"),
        (r"Find \(x\).", "Find $x$"),
        ("Janet\u2019s ducks lay 16 eggs", "janet's ducks lay 16 eggs."),
        ("What is 3 \u2212 2?", "What is 3 - 2"),
        ('He said "yes", and left.', "he said yes and left"),
        ("ＦＵＬＬ width", "full width"),
    ],
)
def test_the_same_question_in_another_spelling_has_the_same_key(one: str, other: str) -> None:
    assert question_key(one) == question_key(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is 2.5 + 3?", "What is 25 + 3?"),
        ("What is 1,000 - 1?", "What is 1000 - 1?"),
        ("What is 5! + 1?", "What is 5 + 1?"),
        ("Find f'(2).", "Find f(2)."),
        ("Find (a, b].", "Find [a, b)."),
        ("Sort 1 23.", "Sort 12 3."),
    ],
)
def test_what_changes_the_meaning_of_a_question_changes_its_key(one: str, other: str) -> None:
    assert question_key(one) != question_key(other)


def test_the_key_of_chat_messages_is_that_of_what_the_user_says() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    assert prompt_key(chat) == prompt_key("1 + 1?")
