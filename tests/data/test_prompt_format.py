"""Problems become prompts in one place: by the chat template, or as plain text."""

import pytest

from arl.data.prompt_format import PromptFormat
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError
from arl.types import Problem
from tests.data.chat_tokenizers import (
    BROKEN,
    INSTRUCTION,
    OPEN_TURN,
    OTHER_HISTORY,
    TURNS,
    WITHOUT_QUESTION,
    chat_tokenizer,
)

QUESTION = Problem("What is 1 + 1?", "2")
CHAT = Problem([{"role": "user", "content": "What is 1 + 1?"}], "2")


def prompt(problem: Problem, template: str | None = TURNS, prompts: PromptFormat | None = None) -> str:
    """Return the prompt as the policy sees it: encoded, and decoded again with its marks."""
    tokenizer = chat_tokenizer(template)
    codec = HuggingFaceCodec(tokenizer, prompts or PromptFormat())
    return str(tokenizer.decode(codec.encode_problem(problem), skip_special_tokens=False))


def test_a_text_prompt_is_a_users_message_where_there_is_a_template() -> None:
    assert prompt(QUESTION) == "<|start|>user\nWhat is 1 + 1?<|end|>\n<|start|>assistant\n"
    assert prompt(QUESTION) == prompt(CHAT)


def test_the_suffix_follows_the_question_and_the_system_prompt_comes_first() -> None:
    prompts = PromptFormat(system="Be brief.", suffix="\nBox it.")
    expected = "<|start|>system\nBe brief.<|end|>\n<|start|>user\nWhat is 1 + 1?\nBox it.<|end|>\n<|start|>assistant\n"
    assert prompt(QUESTION, prompts=prompts) == expected
    assert prompt(CHAT, prompts=prompts) == expected


@pytest.mark.parametrize(
    ("template", "prompts"),
    [(None, PromptFormat(suffix="\nBox it.")), (TURNS, PromptFormat(suffix="\nBox it.", chat_template=False))],
)
def test_a_text_prompt_stays_text_without_a_template_or_where_it_is_turned_off(
    template: str | None, prompts: PromptFormat
) -> None:
    assert prompt(QUESTION, template, prompts) == "<bos>What is 1 + 1?\nBox it."


@pytest.mark.parametrize(
    ("template", "chat_template", "why"),
    [(None, True, "the tokenizer has no chat template"), (TURNS, False, "data.chat_template is false")],
)
def test_a_system_prompt_or_chat_messages_without_a_template_are_refused(
    template: str | None, chat_template: bool, why: str
) -> None:
    with pytest.raises(DataError, match=f"data.system 'Be brief.': needs a chat template, and {why}"):
        prompt(QUESTION, template, PromptFormat(system="Be brief.", chat_template=chat_template))
    with pytest.raises(DataError, match=f"problem {CHAT.id} is chat messages, and {why}"):
        prompt(CHAT, template, PromptFormat(chat_template=chat_template))


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        (OPEN_TURN, "does not close the user's turn"),
        (OTHER_HISTORY, "renders a conversation in another way when an answer is to follow"),
        (WITHOUT_QUESTION, "leaves out the question"),
        (BROKEN, "does not take messages of user"),
    ],
)
def test_a_template_that_does_not_hand_over_the_turn_is_refused(template: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as caught:
        HuggingFaceCodec(chat_tokenizer(template))
    assert "data.chat_template to false" in str(caught.value)
    assert HuggingFaceCodec(chat_tokenizer(template), PromptFormat(chat_template=False))


def test_a_template_without_a_generation_prompt_serves_if_a_mark_closes_the_question() -> None:
    assert prompt(QUESTION, INSTRUCTION) == "<|start|>What is 1 + 1?<|end|>"


def test_a_template_may_end_a_conversation_with_the_end_of_a_text() -> None:
    tokenizer = chat_tokenizer(TURNS + "{%- if not add_generation_prompt -%}{{ eos_token }}{%- endif -%}")
    tokenizer.eos_token = "<eos>"
    codec = HuggingFaceCodec(tokenizer)
    assert [tokenizer.decode([token]) for token in codec.stop_token_ids] == ["<|end|>", "<eos>"]


def test_a_system_prompt_that_the_template_leaves_out_is_refused() -> None:
    template = TURNS.replace("messages -%}", "messages if message.role != 'system' -%}")
    told = Problem([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}])
    for problem, prompts in ((QUESTION, PromptFormat(system="Be brief.")), (told, PromptFormat())):
        with pytest.raises(DataError, match=r"leaves out system prompts: .* data\.suffix"):
            prompt(problem, template, prompts)


def test_a_message_of_a_role_that_the_template_leaves_out_is_refused() -> None:
    template = TURNS.replace("messages -%}", "messages if message.role in ('user', 'assistant') -%}")
    with pytest.raises(DataError, match="leaves out what role 'human' says; a question is of role 'user'"):
        prompt(Problem([{"role": "human", "content": "1 + 1?"}]), template)
