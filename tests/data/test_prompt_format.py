"""Problems become prompts in one place, and over several turns the token record is what the policy saw."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from arl import clock
from arl.config.recipe import Rollout, TinyModel
from arl.data.tokenizer import HuggingFaceCodec, PromptFormat
from arl.engine.base import Engine
from arl.errors import DataError
from arl.models.tiny import make_tiny_model
from arl.rollout.env import Session
from arl.rollout.episodes import Episodes
from arl.types import GenerateRequest, Increment, Problem, Trajectory
from tests.data.chat_tokenizers import (
    BROKEN,
    INSTRUCTION,
    OPEN_TURN,
    OTHER_HISTORY,
    THINKING,
    TURNS,
    WITHOUT_QUESTION,
    chat_tokenizer,
)
from tests.fakes import NullRewards

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


def test_two_system_prompts_are_refused() -> None:
    problem = Problem([{"role": "system", "content": "Hello."}, *CHAT.prompt])
    with pytest.raises(DataError, match="brings a system prompt of its own"):
        prompt(problem, prompts=PromptFormat(system="Be brief."))


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


class Thinker:
    """An engine that thinks in each of its turns, and remembers what it was asked to continue."""

    def __init__(self, answers: list[tuple[int, ...]]) -> None:
        self._answers = answers
        self.contexts: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest):  # type: ignore[no-untyped-def]
        """See Engine."""
        await asyncio.sleep(0)
        answer = self._answers[len(self.contexts)]
        self.contexts.append(request.input_ids)
        yield Increment(answer, (-1.0,) * len(answer), (0,) * len(answer), "stop")


def converse(tokenizer: PreTrainedTokenizerBase, answers: list[str], reply: str) -> tuple[Trajectory, Thinker]:
    """Let the policy answer twice, with a reply between."""
    codec = HuggingFaceCodec(tokenizer)
    thinker = Thinker([codec.encode(answer) for answer in answers])
    engine: Engine = thinker  # type: ignore[assignment]

    async def env(problem: Problem, session: Session) -> None:
        await session.generate()
        session.extend(reply)
        await session.generate()

    rollout = Rollout(group_size=1, max_new_tokens=500)
    episodes = Episodes(engine, codec, NullRewards(), env, rollout, seed=0, max_length=1000)

    async def main() -> Trajectory:
        (trajectory,) = await episodes.run(QUESTION, episodes.open("g0", QUESTION))
        return trajectory

    return clock.run(main, virtual=True), thinker


def test_over_several_turns_the_record_keeps_reasoning_that_the_template_would_leave_out_of_history() -> None:
    tokenizer = chat_tokenizer(THINKING)
    answers = ["one and one</think>2<|end|>", "<think>\nI am</think>yes<|end|>"]
    reply = "\n<|start|>user\nSure?<|end|>\n<|start|>assistant\n"
    trajectory, thinker = converse(tokenizer, answers, reply)
    beginning = "<|start|>user\nWhat is 1 + 1?<|end|>\n<|start|>assistant\n<think>\n"
    record = trajectory.token_ids.tolist()
    assert tokenizer.decode(record) == beginning + answers[0] + reply + answers[1]
    before_second = tokenizer.decode(thinker.contexts[1])
    assert before_second == beginning + answers[0] + reply
    sampled = trajectory.token_ids[trajectory.loss_mask].tolist()
    assert tokenizer.decode(sampled) == "".join(answers)
    rendered_again = tokenizer.apply_chat_template(
        [*CHAT.prompt, {"role": "assistant", "content": answers[0]}],
        tokenize=False,
    )
    assert "one and one" not in rendered_again  # so rendering history anew would not be what the policy saw


def test_a_tokenizer_without_code_of_its_own_is_loaded_without_torch(tmp_path: Path) -> None:
    make_tiny_model(TinyModel(), "0123456789+=", 0, tmp_path)
    probe = (
        f"import sys; from arl.data.tokenizer import load_codec; ids = load_codec({str(tmp_path)!r}).encode('1+2');"
        "sys.exit('torch' in sys.modules or len(ids) != 3)"
    )
    assert subprocess.run([sys.executable, "-c", probe], check=False, timeout=120).returncode == 0
