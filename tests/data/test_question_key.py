"""Equal questions in another spelling have one key; other questions have another."""

import pytest

from arl.data.row_problems import prompt_question, question_key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Find $x^2$ for x = 3.", "find x^2 for x = 3"),
        (r"Find \(x\).", "Find $x$"),
        ("Janet\u2019s ducks lay 16 eggs", "janet's ducks lay 16 eggs."),
        ("What is 3 \u2212 2?", "What is 3 - 2"),
        ('He said "yes", and left.', "he said yes and left"),
        ("ＦＵＬＬ \u00a0WIDTH?!", "full width"),
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
        ("Add 1, 2.", "Add 1, 3."),
    ],
)
def test_what_changes_the_meaning_of_a_question_changes_its_key(one: str, other: str) -> None:
    assert question_key(one) != question_key(other)


def test_the_question_of_chat_messages_is_what_the_user_says() -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
    assert prompt_question(chat) == "1 + 1?"
    assert prompt_question(chat[:1]) == "Be brief."
