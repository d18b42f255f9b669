"""An agent written against the openai package runs unchanged, and all that it makes the policy say is recorded."""

import asyncio
import json
import resource
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import openai
import pytest
from openai import AsyncOpenAI

from arl.clock import run as run_on_clock
from arl.engine.base import Engine
from arl.errors import EngineError, RunError
from arl.rollout.env import Session
from arl.sync.loading import read_weights
from arl.types import GenerateRequest, Increment, Problem, WeightUpdate
from tests.endpoint.conftest import BUDGET, Actor, OpenWorld, World, client_of, logged_turns, trained_turns


def ask(text: str = "p") -> list[Any]:
    return [{"role": "user", "content": text}]


async def three_turns(problem: Problem, session: Session) -> float:
    """Ask three times, each time with the whole conversation."""
    async with session.endpoint() as url, client_of(url) as client:
        messages = ask(str(problem.prompt))
        for number in range(3):
            answer = await client.chat.completions.create(model="policy", messages=messages, max_tokens=40)
            messages += [answer.choices[0].message, *ask(f"again {number}")]
    return 0.5


def test_a_conversation_is_one_trajectory_that_begins_with_the_problem_and_re_tokenizes_nothing(
    in_world: OpenWorld,
) -> None:
    async def scenario(world: World) -> None:
        (trajectory,) = await world.run(three_turns)
        assert len(world.engine.log) == 3
        assert trained_turns([trajectory]) == logged_turns(world.engine.log)
        assert world.text(trajectory.token_ids.tolist()).startswith("[user]p<eos>[assistant]")
        assert trajectory.reward == 0.5

    in_world(scenario)


def test_many_agents_at_once_with_swaps_in_between_and_during_their_calls_train_what_the_engine_sampled(
    in_world: OpenWorld, models: tuple[Path, Path]
) -> None:
    async def scenario(world: World) -> None:
        async def swap() -> None:
            for version in range(1, 5):
                await world.engine.began.wait()
                world.engine.began.clear()
                update = WeightUpdate(version, state=read_weights(str(models[version % 2])))
                await world.inner.update_weights(update)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(swap())
            groups = [tasks.create_task(world.run(three_turns, name=f"g{i}", group_size=2)) for i in range(4)]
        trajectories = [trajectory for group in groups for trajectory in group.result()]
        assert trained_turns(trajectories) == logged_turns(world.engine.log)
        versions = [set(trajectory.policy_versions.tolist()) - {-1} for trajectory in trajectories]
        assert set.union(*versions) >= {0, 4}
        assert max(map(len, versions)) > 1

    in_world(scenario)


def test_choices_of_one_request_differ_and_are_branches_of_one_episode(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                answer = await client.chat.completions.create(model="policy", messages=ask(), n=3, max_tokens=20)
                said = [choice.message.content for choice in answer.choices]
                assert len(set(said)) == 3
                assert answer.usage is not None
                assert answer.usage.completion_tokens == sum(len(entry.token_ids) for entry in world.engine.log)

        trajectories = await world.run(env)
        assert [trajectory.branch for trajectory in trajectories] == [0, 1, 2]
        assert trained_turns(trajectories) == logged_turns(world.engine.log)

    in_world(scenario)


def test_a_stream_says_what_a_whole_answer_says_with_logprobs_and_usage(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                stream = await client.chat.completions.create(
                    model="policy",
                    messages=ask(),
                    max_completion_tokens=20,
                    logprobs=True,
                    stream=True,
                    stream_options={"include_usage": True},
                )
                chunks = [chunk async for chunk in stream]
                (entry,) = world.engine.log
                first = chunks[0].choices[0]
                assert first.delta.content == world.codec.decode(entry.token_ids)
                assert first.logprobs is not None
                assert first.logprobs.content is not None
                assert [token.logprob for token in first.logprobs.content] == entry.logprobs
                assert "".join(token.token for token in first.logprobs.content) == world.text(entry.token_ids)
                assert chunks[1].choices[0].finish_reason in ("length", "stop")
                assert chunks[2].usage is not None
                assert chunks[2].usage.prompt_tokens == len(entry.context)

        await world.run(env)

    in_world(scenario)


def test_a_stop_string_ends_the_answer_before_it_and_the_record_behind_it(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                whole = await client.chat.completions.create(model="policy", messages=ask(), max_tokens=20)
                text = whole.choices[0].message.content
                assert text is not None
                cut = await client.chat.completions.create(
                    model="policy", messages=ask(), stop=list(text), max_tokens=40
                )
                said = cut.choices[0].message.content
                assert said is not None
                assert not set(said) & set(text)
                assert session.seen_by_reward().text == said
                assert cut.choices[0].finish_reason == "stop"
                assert world.text(world.engine.log[1].token_ids)[len(said)] in text

        trajectories = await world.run(env)
        assert trained_turns(trajectories)[0][1]

    in_world(scenario)


def test_a_client_that_dies_aborts_its_request_and_the_episode_goes_on_with_what_was_said(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                dying = asyncio.create_task(client.chat.completions.create(model="policy", messages=ask("long")))
                await world.engine.began.wait()
                dying.cancel()
                await asyncio.wait([dying])
                await world.engine.idle.wait()
                await client.chat.completions.create(model="policy", messages=ask("short"), max_tokens=5)

        trajectories = await world.run(env)
        assert [len(entry.token_ids) < BUDGET for entry in world.engine.log] == [True, True]
        assert sum(trajectory.num_sampled for trajectory in trajectories) >= 5

    in_world(scenario)


CALLS = """\
two<tool_call>{"name": "add", "arguments": {"a":1,   "b":2}}</tool_call>
<tool_call>{"name": "add", "arguments": {"a": 3, "b": 4}}</tool_call>"""
ADD: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("stream", [False, True])
def test_tool_calls_and_their_results_go_through_the_client_and_stay_the_tokens_that_were_sampled(
    in_world: OpenWorld, stream: bool
) -> None:
    async def scenario(world: World) -> None:
        world.engine.inner = cast(Engine, Actor(world.codec, CALLS, "3 and 7"))

        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                messages = ask()
                message: Any
                if stream:
                    chunks = await client.chat.completions.create(
                        model="policy", messages=messages, tools=[ADD], stream=True
                    )
                    parts = [chunk.choices[0] async for chunk in chunks]
                    reason, message = parts[1].finish_reason, parts[0].delta
                else:
                    answer = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
                    reason, message = answer.choices[0].finish_reason, answer.choices[0].message
                assert (reason, message.content) == ("tool_calls", "two")
                assert [json.loads(call.function.arguments) for call in message.tool_calls] == [
                    {"a": 1, "b": 2},
                    {"a": 3, "b": 4},
                ]
                calls = [call.model_dump(exclude={"index"}) for call in message.tool_calls]
                messages += [{"role": "assistant", "content": "two", "tool_calls": calls}]
                messages += [{"role": "tool", "content": "3", "tool_call_id": call["id"]} for call in calls]
                last = await client.chat.completions.create(model="policy", messages=messages, tools=[ADD])
                assert (last.choices[0].finish_reason, last.choices[0].message.content) == ("stop", "3 and 7")

        (trajectory,) = await world.run(env)
        assert trained_turns([trajectory]) == logged_turns(world.engine.log)
        assert CALLS in world.text(trajectory.token_ids.tolist())

    in_world(scenario)


REFUSED: list[tuple[dict[str, Any], type[openai.APIStatusError], str]] = [
    ({"model": "gpt-4o"}, openai.NotFoundError, "asks? for 'policy'"),
    ({"temperature": 0.5}, openai.BadRequestError, "temperature 0.5: only 1.0 is served"),
    ({"top_p": 0.9}, openai.BadRequestError, "top_p 0.9: only 1 is served"),
    ({"logit_bias": {"3": 1}}, openai.BadRequestError, "logit_bias"),
    ({"response_format": {"type": "json_object"}}, openai.BadRequestError, "response_format"),
    ({"seed": 3}, openai.BadRequestError, "unknown field `seed`; leave out"),
    ({"n": 0}, openai.BadRequestError, r"\$\.n"),
    ({"tool_choice": "required"}, openai.BadRequestError, r"tool_choice"),
    ({"messages": []}, openai.BadRequestError, r"\$\.messages"),
    ({"messages": [{"content": "?"}]}, openai.BadRequestError, "required field `role`"),
    ({"messages": ask("x" * 600)}, openai.BadRequestError, "maximum context length"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, openai.BadRequestError, "image_url"),
]


def test_what_cannot_be_served_is_refused_with_its_reason_and_the_episode_goes_on(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                for change, kind, reason in REFUSED:
                    with pytest.raises(kind, match=reason):
                        await client.chat.completions.create(**{"model": "policy", "messages": ask(), **change})
                with pytest.raises(openai.NotFoundError, match="served are POST chat/completions"):
                    await client.embeddings.create(model="policy", input="x")
                accepted: Any = {"temperature": 1.0, "top_p": 1, "user": "me", "frequency_penalty": 0, "max_tokens": 5}
                await client.chat.completions.create(model="policy", messages=ask(), **accepted)

        (trajectory,) = await world.run(env)
        assert trajectory.num_sampled == len(world.engine.log[-1].token_ids)

    in_world(scenario)


def test_messages_that_do_not_fit_are_refused_and_shorter_ones_go_on_in_the_same_branch(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                first = await client.chat.completions.create(model="policy", messages=ask(), max_tokens=9)
                messages = [*ask(), first.choices[0].message]
                with pytest.raises(openai.BadRequestError, match="maximum context length"):
                    await client.chat.completions.create(model="policy", messages=[*messages, *ask("x" * 600)])
                await client.chat.completions.create(model="policy", messages=[*messages, *ask("x")], max_tokens=9)

        (trajectory,) = await world.run(env)
        assert trained_turns([trajectory]) == logged_turns(world.engine.log)
        assert not trajectory.truncated

    in_world(scenario)


def test_a_spent_budget_is_refused_and_the_episode_is_truncated(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async def ask_for_ever(client: AsyncOpenAI) -> None:
                while True:
                    await client.chat.completions.create(model="policy", messages=ask())

            async with session.endpoint() as url, client_of(url) as client:
                with pytest.raises(openai.BadRequestError, match=r"rollout\.max_new_tokens is spent") as raised:
                    await ask_for_ever(client)
                assert raised.value.code == "context_length_exceeded"

        trajectories = await world.run(env, max_new_tokens=30)
        assert sum(trajectory.num_sampled for trajectory in trajectories) == 30

    in_world(scenario)


def test_an_address_is_gone_with_its_episode_and_open_requests_end_with_it(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        left: list[Any] = []

        async def leaves(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url:
                client = client_of(url)
                left.append(client)
                left.append(asyncio.create_task(client.chat.completions.create(model="policy", messages=ask())))
                await world.engine.began.wait()

        await world.run(leaves)
        client, request = left
        assert world.engine.num_open == 0
        with pytest.raises(openai.APIStatusError, match="the episode has ended"):
            await request
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="policy", messages=ask())

    in_world(scenario)


def test_a_failure_of_the_engine_ends_the_episode_whatever_its_agent_makes_of_it(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        def fail(request: object) -> Any:
            raise EngineError("out of order")

        async def stubborn(problem: Problem, session: Session) -> float:
            async with session.endpoint() as url, client_of(url) as client:
                while True:
                    try:
                        await client.chat.completions.create(model="policy", messages=ask())
                    except openai.APIError:
                        await asyncio.sleep(0)

        world.inner.generate = fail  # type: ignore[method-assign]
        with pytest.raises(ExceptionGroup) as raised:
            await world.run(stubborn)
        assert raised.group_contains(EngineError, match="out of order")

    in_world(scenario)


def test_a_resumed_episode_answers_the_first_requests_of_its_agent_from_the_record(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        (whole,) = await world.run(three_turns)
        (session,) = world.sessions
        recorded = session.journal()[:2]
        world.engine.log.clear()
        (resumed,) = await world.run(three_turns, journals=[recorded])
        assert len(world.engine.log) == 1
        assert resumed.token_ids.tolist() == whole.token_ids.tolist()

    in_world(scenario)


def test_more_agents_at_once_than_a_process_may_open_files_by_default_are_all_served(in_world: OpenWorld) -> None:
    count = 100

    class Meeting(Actor):
        """Says nothing before all requests have come."""

        async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
            await met.wait()
            async for increment in super().generate(request):
                yield increment

    met = asyncio.Barrier(count)

    async def scenario(world: World) -> None:
        world.engine.inner = cast(Engine, Meeting(world.codec, *["yes"] * count))
        async with client_of("http://set.below") as shared:

            async def env(problem: Problem, session: Session) -> None:
                async with session.endpoint() as url:
                    client = shared.with_options(base_url=url)
                    answer = await client.chat.completions.create(model="policy", messages=ask())
                    assert answer.choices[0].message.content == "yes"

            assert len(await world.run(env, group_size=count)) == count

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + count
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, limits[1]))
    try:
        in_world(scenario)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_an_endpoint_in_virtual_time_is_refused() -> None:
    async def main() -> None:
        session: Any = None
        await Session.endpoint(session).__aenter__()

    with pytest.raises(RunError, match="use `world: wall`"):
        run_on_clock(main, virtual=True)
