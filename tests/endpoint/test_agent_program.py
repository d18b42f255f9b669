"""An agent may be a program of its own, which finds the endpoint in its environment."""

import sys
from pathlib import Path

import pytest

from arl.endpoint.agent_program import run_agent
from arl.errors import UserCodeError
from tests.endpoint.conftest import OpenWorld, World, logged_turns, trained_turns
from tests.processes import MARK, left_behind

BEGIN = """\
import json, os, subprocess, sys
from openai import OpenAI

problem = json.load(sys.stdin)
client = OpenAI(max_retries=0)

def ask(tokens=9):
    messages = [{"role": "user", "content": problem["prompt"]}]
    return client.chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=messages, max_tokens=tokens)

"""


def agent(folder: Path, *lines: str) -> str:
    """Write a program, and return its command."""
    file = folder / "agent of mine.py"
    file.write_text(BEGIN + "\n".join(lines))
    return f"{sys.executable} '{file}'"


def test_a_program_drives_episodes_and_may_give_their_reward(in_world: OpenWorld, tmp_path: Path) -> None:
    command = agent(tmp_path, "ask()", 'print("log")', 'print(json.dumps({"reward": 0.25}))')

    async def scenario(world: World) -> None:
        trajectories = await world.run(run_agent, group_size=2, agent=command)
        assert [trajectory.reward for trajectory in trajectories] == [0.25, 0.25]
        assert trained_turns(trajectories) == logged_turns(world.engine.log)

    in_world(scenario)


def test_where_a_program_gives_no_reward_the_reward_function_does(in_world: OpenWorld, tmp_path: Path) -> None:
    command = agent(tmp_path, "print(ask())")

    async def scenario(world: World) -> None:
        (trajectory,) = await world.run(run_agent, agent=command)
        assert trajectory.reward == 1.0

    in_world(scenario)


def test_a_program_that_fails_fails_its_group_with_the_end_of_its_errors_and_leaves_no_process(
    in_world: OpenWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MARK, str(tmp_path))
    command = agent(tmp_path, "subprocess.Popen(['sleep', '1000'])", "ask()", "raise KeyError('tool')")

    async def scenario(world: World) -> None:
        with pytest.raises(ExceptionGroup) as raised:
            await world.run(run_agent, agent=command)
        assert raised.group_contains(UserCodeError, match=r"(?s)agent of mine.* exited with code 1.*KeyError: 'tool'")

    in_world(scenario)
    assert left_behind(str(tmp_path)) == []


def test_a_program_that_fails_because_its_budget_is_spent_has_ended_its_episode(
    in_world: OpenWorld, tmp_path: Path
) -> None:
    command = agent(tmp_path, "while True: ask(None)")

    async def scenario(world: World) -> None:
        trajectories = await world.run(run_agent, agent=command, max_new_tokens=20)
        assert {trajectory.truncated for trajectory in trajectories} == {True}

    in_world(scenario)
