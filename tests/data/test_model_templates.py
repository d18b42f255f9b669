"""The chat templates and tokenizers of the families that people train: turns, end tokens, marks, dates, lengths."""

from datetime import datetime
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from arl.config.recipe import Recipe
from arl.data.model_limits import Limits
from arl.data.prompt_format import PromptFormat
from arl.data.row_problems import Candidate, Question
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError, InputError
from arl.models.tiny import character_tokenizer
from arl.run.prompt_lengths import fitting_prompts
from arl.types import Problem
from tests.data.model_templates import FAMILIES, family_tokenizer

MARKS = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>")
QUESTION = Problem("What is 1 + 1?", "2")
DATED = PromptFormat(template_time=datetime(2031, 12, 31, 23, 59, 59))
RECIPE = {"name": "x", "model": {"path": "."}, "data": {"task": "arithmetic"}}


def text_of(codec: HuggingFaceCodec, problem: Problem) -> str:
    """Return a prompt as the policy sees it."""
    return codec.decode_all([codec.encode_problem(problem)], special_tokens=True)[0]


def candidates(*prompts: str) -> list[Candidate]:
    return [
        Candidate(Problem(prompt), Question(prompt), f"sums.jsonl:{i}") for i, prompt in enumerate(prompts, start=1)
    ]


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# ---- turns


def test_a_prompt_has_the_tokens_that_transformers_gives_it(family: str) -> None:
    tokenizer = family_tokenizer(family)
    arguments = {"date_string": "a day"} if family == "llama3_1" else {}
    codec = HuggingFaceCodec(tokenizer, PromptFormat(suffix="\nBox it.", template_arguments=arguments))
    messages = [{"role": "user", "content": "What is 1 + 1?\nBox it."}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **arguments)
    assert list(codec.encode_problem(QUESTION)) == expected
    assert text_of(codec, QUESTION).endswith(f"What is 1 + 1?\nBox it.{FAMILIES[family].hand_over}")


def test_the_token_that_ends_a_turn_of_the_template_stops_generation(family: str) -> None:
    tokenizer = family_tokenizer(family)
    codec = HuggingFaceCodec(tokenizer)
    end, eos = tokenizer.convert_tokens_to_ids([FAMILIES[family].turn_end, FAMILIES[family].eos])
    assert codec.stop_token_ids == tuple(dict.fromkeys((end, eos)))
    assert codec.stop_sources[end][0] == "chat template"
    plain = HuggingFaceCodec(tokenizer, PromptFormat(chat_template=False))
    assert plain.stop_token_ids == (eos,)


@pytest.mark.parametrize(
    ("answer", "ends", "unmarked"),
    [
        ("{{ message.content }}\n<|im_end|>", "<|im_end|>", ""),  # behind a line end
        ("<|assistant|>{{ message.content }}", "<|user|>", ""),  # by the next question alone
        ("{{ message.content }}\n### End", None, "### End"),  # by words
        ("A: {{ message.content }}\n\n", None, "Q:"),  # by the words of the next question
    ],
)
def test_an_answer_ends_where_the_template_ends_it_or_the_plan_says_that_nothing_does(
    answer: str, ends: str | None, unmarked: str
) -> None:
    tokenizer = family_tokenizer("qwen2_5", extra=("<|user|>", "<|assistant|>"))
    question = "Q: {{ message.content }}:" if ends is None else "<|user|>{{ message.content }}<|assistant|>"
    tokenizer.chat_template = (
        "{% for message in messages %}{% if message.role == 'user' %}"
        + question
        + "{% else %}"
        + answer
        + "{% endif %}"
        "{% endfor %}"
    )
    codec = HuggingFaceCodec(tokenizer)
    stops = [tokenizer.decode([token]) for token in codec.stop_token_ids]
    assert set(stops) == {"<|endoftext|>", ends or "<|endoftext|>"}
    assert [unmarked in note and "rollout.stop" in note for note in codec.prompts.notes()] == [True] * bool(unmarked)


@pytest.mark.parametrize("mark", MARKS[::2])
def test_what_the_policy_said_is_in_the_text_without_the_tokens_that_frame_turns(family: str, mark: str) -> None:
    tokenizer = family_tokenizer(family, extra=MARKS, pad_token="<filler>")
    codec = HuggingFaceCodec(tokenizer)
    # Also where the template writes such marks itself, into the beginning of an answer or into the system turn.
    tokenizer.chat_template = f"{mark} is for you. {tokenizer.chat_template}" + (
        "{% if add_generation_prompt %}" + mark + "{% endif %}"
    )
    prompted = HuggingFaceCodec(tokenizer)
    frames = "".join(FAMILIES[family].special)
    said = codec.encode(f"{mark}a{frames}b<filler>")
    expected = f"{mark}ab"
    assert codec.decode(said) == expected
    assert codec.decode_all([said, ()]) == [expected, ""]
    assert prompted.decode(said) == expected


# ---- arguments and the clock


def test_thinking_is_turned_off_by_an_argument_of_the_template() -> None:
    tokenizer = family_tokenizer("qwen3")
    thinking = text_of(HuggingFaceCodec(tokenizer), QUESTION)
    quiet = HuggingFaceCodec(tokenizer, PromptFormat(template_arguments={"enable_thinking": False}))
    assert text_of(quiet, QUESTION) == f"{thinking}<think>\n\n</think>\n\n"
    assert "data.template_arguments {'enable_thinking': False}" in quiet.prompts.describe()


def test_an_argument_that_the_template_does_not_read_is_refused() -> None:
    with pytest.raises(DataError, match=r"data\.template_arguments\.thinking: .*it takes .*enable_thinking"):
        HuggingFaceCodec(family_tokenizer("qwen3"), PromptFormat(template_arguments={"thinking": False}))
    wanted = PromptFormat(chat_template=False, template_arguments={"enable_thinking": False})
    with pytest.raises(DataError, match=r"data\.template_arguments .*needs a chat template"):
        HuggingFaceCodec(family_tokenizer("qwen3"), wanted)


def test_a_prompt_is_the_same_before_and_after_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = []
    for day in (1, 2):

        class Clock(datetime):
            """A wall clock that has stopped on a day."""

            @classmethod
            def now(cls, tz: Any = None) -> "Clock":
                return cls(2026, 6, day)  # noqa: B023 - asked within the loop

        monkeypatch.setattr(chat_template_utils, "datetime", Clock)
        codec = HuggingFaceCodec(family_tokenizer("llama3_1"), DATED)
        prompts.append(text_of(codec, QUESTION))
        (note,) = codec.prompts.notes()
        assert "31 Dec 2031, by data.template_time" in note
    assert "Today: 31 Dec 2031" in prompts[0]
    assert prompts[0] == prompts[1]


# ---- plain text


@pytest.mark.parametrize("adds_eos", [False, True])
def test_plain_text_begins_with_one_bos_and_does_not_end_with_eos(adds_eos: bool) -> None:
    tokenizer = family_tokenizer("llama3_1", adds_eos=adds_eos)
    codec = HuggingFaceCodec(tokenizer, PromptFormat(chat_template=False))
    rendered = "<|begin_of_text|><|start_header_id|>user<|end_header_id|>"
    assert text_of(codec, Problem("1 + 1 =")) == "<|begin_of_text|>1 + 1 ="
    assert text_of(codec, Problem(rendered)) == rendered


def test_a_prompt_is_described_by_its_first_and_last_tokens_and_by_what_ends_a_response() -> None:
    codec = HuggingFaceCodec(family_tokenizer("qwen2_5"))
    first, *_, last = codec.encode_problem(QUESTION)
    described = codec.describe(QUESTION)[1]
    assert f", {first} '<|im_start|>' " in described
    assert f" {last} '\\n'; a response ends with " in described
    assert described.endswith("'<|im_end|>' (chat template) or 256 '<|endoftext|>' (tokenizer)")


# ---- all prompts are measured


def measure(codec: HuggingFaceCodec, rows: list[Candidate], context: int = 512, vocab_size: int = 400) -> list[str]:
    """Return what is noted of the prompts of a recipe whose answers have 100 tokens."""
    notes: list[str] = []
    recipe = Recipe.model_validate({**RECIPE, "rollout": {"max_new_tokens": 100}})
    kept, _ = fitting_prompts(recipe, codec, Limits(vocab_size, context), rows, notes)
    assert kept == rows
    return notes


def test_the_longest_prompt_is_found_by_tokens_whatever_its_script() -> None:
    codec = HuggingFaceCodec(family_tokenizer("gemma"))
    english = "How much is it? " * 8  # a token a byte
    chinese = "数" * 60
    needed = len(codec.encode_problem(Problem(chinese))) + 100
    prompts = [*([english] * 30), chinese, *(["1?"] * 30)]
    assert measure(codec, candidates(*prompts), needed) == []
    with pytest.raises(InputError, match=rf"a prompt of {needed - 100} tokens .*The longest is sums\.jsonl:31 "):
        measure(codec, candidates(*prompts), needed - 1)


def test_questions_with_control_tokens_are_counted_and_the_first_is_named(family: str) -> None:
    codec = HuggingFaceCodec(family_tokenizer(family, extra=("<think>", "</think>", "<|extra|>")))
    end = FAMILIES[family].turn_end
    assert measure(codec, candidates("1 + 1?", "Think in <think> and </think>.")) == []
    (note,) = measure(codec, candidates("1 + 1?", f"2?{end}", "3?<|extra|>"))
    assert "2 of 3 prompts hold control tokens" in note
    assert f"{end!r} in sums.jsonl:2" in note


def test_a_prompt_that_the_template_refuses_is_named_by_its_row() -> None:
    codec = HuggingFaceCodec(family_tokenizer("gemma"))
    rows = candidates("1?", "2?")
    rows.append(Candidate(Problem([{"role": "system", "content": "No."}]), Question(""), "sums.jsonl:3"))
    with pytest.raises(DataError, match=r"^sums\.jsonl:3 .*does not take messages of system"):
        measure(codec, [*rows, *candidates("4?")])


def test_a_prompt_without_a_token_is_refused_with_its_row() -> None:
    codec = HuggingFaceCodec(family_tokenizer("qwen2_5"), PromptFormat(chat_template=False))
    with pytest.raises(DataError, match=r"^sums\.jsonl:2 .*: its prompt has no token"):
        measure(codec, candidates("1 + 1?", ""))


def test_characters_that_the_tokenizer_does_not_know_are_refused_with_their_row() -> None:
    codec = HuggingFaceCodec(character_tokenizer("0123456789+="))
    with pytest.raises(InputError, match=r"^sums\.jsonl:2 .*: its prompt has ' x', for which this model's tokenizer"):
        measure(codec, candidates("1+1=", "2 x 2=", "3 y 3="))


def test_a_tokenizer_file_that_asks_to_cut_prompts_does_not_shorten_them() -> None:
    tokenizer = family_tokenizer("mistral")
    tokenizer.backend_tokenizer.enable_truncation(max_length=8)
    codec = HuggingFaceCodec(tokenizer)
    assert text_of(codec, QUESTION) == f"<s>[INST] {QUESTION.prompt}[/INST]"
