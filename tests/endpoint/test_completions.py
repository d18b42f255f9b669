"""Requests to /completions continue the record of an episode by text or tokens, without a chat template."""

import openai
import pytest

from arl.rollout.env import Session
from arl.types import Problem
from tests.endpoint.conftest import OpenWorld, World, client_of, logged_turns, trained_turns


def test_a_text_that_repeats_what_was_said_goes_on_behind_the_tokens_that_were_sampled(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                text = "1+1="
                for _ in range(3):
                    answer = await client.completions.create(model="policy", prompt=text, max_tokens=15, logprobs=0)
                    choice = answer.choices[0]
                    assert choice.logprobs is not None
                    assert choice.logprobs.token_logprobs == world.engine.log[-1].logprobs
                    text += choice.text + " and "

        (trajectory,) = await world.run(env)
        assert trained_turns([trajectory]) == logged_turns(world.engine.log)

    in_world(scenario)


def test_other_texts_and_several_choices_fork_the_record(in_world: OpenWorld) -> None:
    async def scenario(world: World) -> None:
        async def env(problem: Problem, session: Session) -> None:
            async with session.endpoint() as url, client_of(url) as client:
                await client.completions.create(model="policy", prompt="ab", n=2, max_tokens=10)
                stream = await client.completions.create(model="policy", prompt="ac", max_tokens=10, stream=True)
                texts = [chunk.choices[0].text async for chunk in stream]
                assert "".join(texts) == world.codec.decode(world.engine.log[2].token_ids)
                with pytest.raises(openai.BadRequestError, match=r"maximum context length"):
                    await client.completions.create(model="policy", prompt="x" * 600, max_tokens=10)

        trajectories = await world.run(env)
        assert [trajectory.branch for trajectory in trajectories] == [0, 1, 2]
        assert trained_turns(trajectories) == logged_turns(world.engine.log)

    in_world(scenario)
