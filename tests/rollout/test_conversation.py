"""A conversation extends the record by what is new, and forks it where history changes."""

import asyncio
import random
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any, cast

import pytest

from arl.data.chat import for_template
from arl.data.prompt_format import PromptFormat
from arl.data.tokenizer import HuggingFaceCodec
from arl.errors import DataError
from arl.rollout.conversation import Conversation, Reply
from arl.rollout.env import UNGRADED, Session
from arl.rollout.tool_calls import Parser, parse_hermes, parse_llama
from arl.types import GenerateRequest, Increment, Problem, SamplingParams, Turn
from tests.data.chat_tokenizers import TURNS, chat_tokenizer
from tests.data.model_templates import TEMPLATES, family_tokenizer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}]


class Script:
    """An engine that says given texts, and ends each with the turn's end; remembers what it was asked."""

    def __init__(self, codec: HuggingFaceCodec, texts: list[str]) -> None:
        self._codec = codec
        self._texts = iter(texts)
        self.asked: list[GenerateRequest] = []
        self.said: list[tuple[int, ...]] = []

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        self.asked.append(request)
        ids = (*self._codec.encode(next(self._texts)), self._codec.stop_token_ids[0])[: request.sampling.max_new_tokens]
        self.said.append(ids)
        await asyncio.sleep(0)
        reason = "stop" if ids[-1] == self._codec.stop_token_ids[0] else "length"
        yield Increment(ids, (-1.0,) * len(ids), (0,) * len(ids), cast(Any, reason))


def opened(
    codec: HuggingFaceCodec, texts: list[str], budget: int = 10_000, journal: tuple[Turn, ...] = ()
) -> tuple[Session, Script]:
    engine = Script(codec, texts)
    sampling = SamplingParams(budget, stop_token_ids=codec.stop_token_ids, seed=5)
    prompt = codec.encode_problem(Problem("Hi"))
    return Session(cast(Any, engine), codec, sampling, prompt, 10_000, "g0.0", "g0", journal), engine


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def run(work: Coroutine[Any, Any, Any]) -> None:
    asyncio.run(work)


def test_turns_are_appended_and_a_question_that_is_asked_twice_forks() -> None:
    codec = HuggingFaceCodec(family_tokenizer("qwen2_5"))
    session, engine = opened(codec, ["one  ", "two", "three", "other"])

    async def talk() -> None:
        conversation = Conversation(session)
        first = await conversation.reply([user("Hi")])
        history = [user("Hi"), {"role": "assistant", "content": first.message["content"].strip()}, user("more")]
        await conversation.reply(history)
        await asyncio.gather(conversation.reply([user("Hi")]), conversation.reply(history))

    run(talk())
    first, second, again, other = engine.asked
    assert first.input_ids == codec.encode_problem(Problem("Hi"))
    end = codec.encode("\n<|im_start|>user\nmore<|im_end|>\n<|im_start|>assistant\n")
    assert second.input_ids == (*first.input_ids, *engine.said[0], *end)  # the space that was sampled included
    assert again.input_ids == first.input_ids
    assert other.input_ids == second.input_ids
    assert len({request.sampling.seed for request in (first, again, other)}) == 3  # so that they say other things
    assert second.sampling.seed == first.sampling.seed
    branches = session.trajectories(UNGRADED)
    assert [branch.branch for branch in branches] == [0, 1, 2]
    assert [branch.num_sampled for branch in branches] == [len(engine.said[0]) + len(engine.said[1]), 6, 6]


def family(name: str, **arguments: Any) -> HuggingFaceCodec:
    """Make the codec of a family, with a template that has its way of tools where it has one."""
    tokenizer = family_tokenizer(name)
    with_tools = TEMPLATES / f"{name}_tools.jinja"
    if with_tools.exists():
        tokenizer.chat_template = with_tools.read_text()
    return HuggingFaceCodec(tokenizer, PromptFormat(template_arguments=arguments))


def words(rng: random.Random) -> str:
    return " ".join(rng.choice(["so", "12", "née", "{x}", "\n", "  "]) for _ in range(rng.randint(1, 4))) + str(
        rng.random()
    )


def said_by(name: str, rng: random.Random, may_call: bool) -> str:
    """Write what a policy of this family may say."""
    thoughts = f"<think>\n{words(rng).strip()}\n</think>\n\n" if name == "qwen3" and rng.random() < 0.7 else ""
    arguments = f'{{"a":{rng.getrandbits(40)},   "b": "é"}}'
    if not may_call or rng.random() < 0.5:
        return thoughts + words(rng)
    if name == "llama3_1":
        return f'{{"name": "add", "parameters": {arguments}}}'
    call = f'<tool_call>\n{{"name": "add", "arguments": {arguments}}}\n</tool_call>'
    return thoughts + (words(rng) + "\n" if rng.random() < 0.5 else "") + "\n".join([call] * rng.randint(1, 2))


def as_client(message: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Write a reply as clients send it back: stripped, without thoughts, with other ids and spaces in its calls."""
    sent = {"role": "assistant", "content": message["content"].strip() or None}
    if "tool_calls" in message:
        calls = [
            {**call, "id": f"x{i}", "function": {**call["function"], "arguments": call["function"]["arguments"] + " "}}
            for i, call in enumerate(message["tool_calls"])
        ]
        sent["tool_calls"] = calls
    return sent


def follow_up(reply: Reply, rng: random.Random) -> list[dict[str, Any]]:
    if reply.finish_reason == "tool_calls":
        return [{"role": "tool", "content": words(rng)} for _ in reply.message["tool_calls"]]
    return [user(words(rng))]


def assert_shows(codec: HuggingFaceCodec, request: GenerateRequest, history: Sequence[Any], tools: list[Any]) -> None:
    """Check that the engine read what the template writes, but for space, which policies put where they like."""
    (read,) = codec.decode_all([request.input_ids], special_tokens=True)
    rendered = codec.prompts.render([for_template(message) for message in history], tools)
    assert "".join(read.split()) == "".join(rendered.split())


@pytest.mark.parametrize("name", ["qwen2_5", "qwen3", "llama3_1", "gemma"])
@pytest.mark.parametrize("seed", range(6))
def test_of_any_tree_of_turns_the_record_is_what_the_engine_read_and_said(name: str, seed: int) -> None:
    rng = random.Random(seed)
    codec = family(name)
    tools = [] if name == "gemma" else TOOLS
    session, engine = opened(codec, [])
    engine._texts = iter(lambda: said_by(name, rng, bool(tools)), None)
    kept: list[list[dict[str, Any]]] = [[user("Hi")]]  # histories that end with a question
    sent: list[list[dict[str, Any]]] = []

    async def talk() -> None:
        conversation = Conversation(session)
        for _ in range(8):
            history = rng.choice(kept[-2:])
            if rng.random() < 0.2:  # a client edits what was said
                history = [{**m, "content": "edited"} if m["role"] == "assistant" else m for m in history]
            if rng.random() < 0.3:  # or goes on in another way
                history = [*history[:-1], {**history[-1], "content": words(rng)}]
            copies = rng.choice([1, 1, 2])
            sent.extend([history] * copies)
            for reply in await asyncio.gather(*(conversation.reply(history, tools) for _ in range(copies))):
                kept.append([*history, as_client(reply.message, rng), *follow_up(reply, rng)])

    run(talk())
    trajectories = session.trajectories(UNGRADED)
    for history, request, said in zip(sent, engine.asked, engine.said, strict=True):
        if name != "qwen3":  # whose clients do not know the thoughts that stand there
            assert_shows(codec, request, history, tools)
        start, end = len(request.input_ids), len(request.input_ids) + len(said)
        holding = [
            t
            for t in trajectories
            if tuple(t.token_ids[:end]) == (*request.input_ids, *said) and t.loss_mask[start:end].all()
        ]
        assert len(holding) == 1, "every turn is trained in one branch, behind the very tokens that the engine read"
    assert sum(t.num_sampled for t in trajectories) == sum(map(len, engine.said)) == session.num_sampled
    assert all((t.behavior_logprobs[t.loss_mask] == -1).all() for t in trajectories)


@pytest.mark.parametrize(
    ("name", "arguments", "branches"),
    [
        ("qwen2_5", {}, 1),
        ("llama3_1", {}, 1),
        ("qwen3", {}, 2),  # the second question drops the thoughts before it, and the tool's answer does not
        ("qwen3", {"enable_thinking": False}, 3),  # the empty thought of a turn goes once another message follows
    ],
)
def test_a_record_forks_where_the_template_changes_history_and_nowhere_else(
    name: str, arguments: dict[str, Any], branches: int
) -> None:
    codec = family(name, **arguments)
    call = '{"name": "add", "parameters": {"a": 1}}'
    if name != "llama3_1":
        call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    thought = "<think>\nhm\n</think>\n\n" if name == "qwen3" and not arguments else ""
    session, engine = opened(codec, [thought + call, f"{thought}It is 2. ", "Bye"])
    asked: list[list[dict[str, Any]]] = []

    async def talk() -> None:
        conversation = Conversation(session)
        history = [user("Hi")]
        for more in ([{"role": "tool", "content": "2"}], [user("thanks")], []):
            asked.append(history)
            reply = await conversation.reply(history, TOOLS)
            history = [*history, reply.message, *more]

    run(talk())
    assert len(session.trajectories(UNGRADED)) == branches
    for history, request in zip(asked, engine.asked, strict=True):
        for message in history:  # what the template does with thoughts is for it to say, so it is given them
            if thoughts := message.get("reasoning_content"):
                message["content"] = f"<think>\n{thoughts}\n</think>\n\n{message['content']}"
                del message["reasoning_content"]
        assert_shows(codec, request, history, TOOLS)


def test_a_template_without_turns_or_tools_is_refused_by_the_name_of_the_model() -> None:
    for codec, what in (
        (HuggingFaceCodec(chat_tokenizer(TURNS.replace("messages", "messages[-1:]"))), "does not show earlier turns"),
        (HuggingFaceCodec(chat_tokenizer(None)), "needs a chat template"),
    ):
        with pytest.raises(DataError, match=what):
            run(Conversation(opened(codec, [])[0]).reply([user("Hi")]))
    session, _ = opened(family("gemma"), ["x"])
    with pytest.raises(DataError, match="knows no tools"):
        run(Conversation(session).reply([user("Hi")], TOOLS))


def test_turns_that_are_open_at_once_share_the_budget_and_a_full_context_is_an_empty_reply() -> None:
    codec = family("qwen2_5")
    session, _ = opened(codec, ["a" * 8, "b" * 8, "c"], budget=12)
    replies: list[Reply] = []

    async def talk() -> None:
        conversation = Conversation(session)
        replies.extend(await asyncio.gather(*(conversation.reply([user("Hi")]) for _ in range(2))))
        replies.append(await conversation.reply([user("Hi")]))

    run(talk())
    assert [len(reply.completion.token_ids) for reply in replies] == [9, 3, 0]
    assert [reply.finish_reason for reply in replies] == ["stop", "length", "length"]
    assert session.num_sampled == 12
    session.end()
    assert session.truncated


SURROGATE = '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'  # which no tokenizer takes
NESTED = f'<tool_call>{{"name": "f", "arguments": {{"a": {"[" * 5000}'


@pytest.mark.parametrize(
    ("parse", "text", "content", "calls", "malformed"),
    [
        (parse_hermes, 'Hm.\n<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', "Hm.\n", 1, ""),
        (parse_hermes, '<tool_call>{"name": "f", "arguments": {}}', "", 1, ""),  # the end was a stop token
        (parse_hermes, "<tool_call>{f(1)}</tool_call>", "<tool_call>{f(1)}</tool_call>", 0, "malformed"),
        (
            parse_hermes,
            '<tool_call>{"name": "f"}</tool_call>',
            '<tool_call>{"name": "f"}</tool_call>',
            0,
            "`arguments`",
        ),
        (parse_hermes, "no call", "no call", 0, ""),
        (parse_hermes, SURROGATE, SURROGATE, 0, "surrogate"),
        (parse_hermes, NESTED, NESTED, 0, "recursion"),
        (parse_llama, '<|python_tag|>{"name": "f", "parameters": {}}', "", 1, ""),
        (parse_llama, '{"name": "f"}; {"name": "g"}', '{"name": "f"}; {"name": "g"}', 0, "`parameters`"),
        (parse_llama, '{"name": "f", "parameters": []}', '{"name": "f", "parameters": []}', 0, "$.parameters"),
        (parse_llama, "{x} is a set", "{x} is a set", 0, "malformed"),
        (parse_llama, "a {", "a {", 0, ""),
    ],
)
def test_calls_are_read_and_a_malformed_one_says_what_is_wrong(
    parse: Parser, text: str, content: str, calls: int, malformed: str
) -> None:
    said = parse(text)
    assert (said.content, len(said.calls)) == (content, calls)
    assert malformed in said.malformed
    assert bool(said.malformed) == bool(malformed)


def test_what_users_say_is_put_back_as_it_was_only_where_it_is_the_same() -> None:
    session, engine = opened(family("qwen3"), ["one", "two"])

    async def talk() -> None:
        conversation = Conversation(session)
        await conversation.reply([user("A </think> x")])
        await conversation.reply([user("B </think> x"), {"role": "assistant", "content": "one"}, user("more")])

    run(talk())
    (_, second) = engine.asked
    (text,) = session.codec.decode_all([list(second.input_ids)], special_tokens=True)
    assert "B </think> x" in text


def test_a_resumed_conversation_takes_the_same_branches_without_asking_the_engine_again() -> None:
    codec = family("qwen3")
    texts = ["<think>\nhm\n</think>\n\nOne", "Two", "Three", "Four"]

    async def talk(session: Session) -> None:
        conversation = Conversation(session)
        first = await conversation.reply([user("Hi")])
        history = [user("Hi"), first.message, user("more")]
        for _ in range(2):  # the first forks because the thoughts are dropped, the second because it asks again
            await conversation.reply(history)
        await conversation.reply([user("Hello")])

    session, engine = opened(codec, texts)
    run(talk(session))
    resumed, silent = opened(codec, [], journal=session.journal())
    run(talk(resumed))
    assert not silent.asked
    assert not resumed.diverged
    assert len(engine.asked) == len(session.branches) == 4
    pairs = zip(session.trajectories(UNGRADED), resumed.trajectories(UNGRADED), strict=True)
    assert all((a.token_ids == b.token_ids).all() and (a.loss_mask == b.loss_mask).all() for a, b in pairs)
