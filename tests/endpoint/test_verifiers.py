"""verifiers: its environments run unchanged against an endpoint, and all that their agents sample is trained."""

from pathlib import Path
from typing import Any

import pytest

from arl.config.data_section import Data
from arl.errors import ArlError, InputError
from arl.tasks.registry import open_task, task_class
from arl.types import Problem
from tests.endpoint.conftest import OpenWorld, World, logged_turns, trained_turns
from tests.extending.short_run import ShortRun

pytest.importorskip("verifiers.v1", reason="verifiers 0.4 is not installed")

LOCAL = {"runtime": {"type": "subprocess"}}


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Install the environments of this folder."""
    monkeypatch.syspath_prepend(Path(__file__).parent / "verifiers_environments")


def data_of(name: str, **options: Any) -> Data:
    return Data.model_validate({"verifiers": name, "options": options})


def problems_of(data: Data) -> list[Problem]:
    return [*open_task(data).problems("training", 0), *open_task(data).problems("evaluation", 0)]


def test_an_environment_of_one_turn_gives_its_reward_and_metrics_as_parts(in_world: OpenWorld) -> None:
    data = data_of("owner/count-letters@1.0", agent=LOCAL, taskset={"letter": "e"}, size=8, eval_fraction=0.4)
    env: Any = task_class(str(data.task)).env
    problem = problems_of(data)[0]
    assert [message["role"] for message in problem.prompt] == ["system", "user"]  # type: ignore[index]

    async def scenario(world: World) -> None:
        episodes = world.episodes(env, group_size=3)
        trajectories = await episodes.run(problem, episodes.open("g0", problem))
        assert len(trajectories) == 3, "no episode has forked"
        assert trained_turns(trajectories) == logged_turns(world.engine.log)
        for trajectory in trajectories:
            said = world.codec.decode(tuple(trajectory.token_ids[trajectory.loss_mask]))
            assert trajectory.reward_parts == {"letters": said.count("e"), "length": len(said)}
            assert trajectory.reward == 2 * said.count("e")

    in_world(scenario)


def test_an_environment_of_several_turns_makes_one_trajectory(in_world: OpenWorld) -> None:
    data = data_of("three-guesses", guesser=LOCAL)
    env: Any = task_class(str(data.task)).env
    problems = problems_of(data)
    assert len(problems) == 20

    async def scenario(world: World) -> None:
        episodes = world.episodes(env)
        (trajectory,) = await episodes.run(problems[0], episodes.open("g0", problems[0]))
        assert len(world.engine.log) == 3
        assert trained_turns([trajectory]) == logged_turns(world.engine.log)
        assert trajectory.reward == 0.75
        assert trajectory.reward_parts == {"turns": 3.0}

    in_world(scenario)


def test_an_environment_that_fails_fails_its_group_by_its_own_error(in_world: OpenWorld) -> None:
    data = data_of("count-letters", agent=LOCAL, taskset={"letter": ""}, size=8)
    env: Any = task_class(str(data.task)).env

    async def scenario(world: World) -> None:
        episodes = world.episodes(env)
        problem = problems_of(data)[0]
        with pytest.raises(ExceptionGroup) as caught:
            await episodes.run(problem, episodes.open("g0", problem))
        assert caught.group_contains(ArlError, match="TaskError: .* there is no letter to count")

    in_world(scenario)


def test_a_set_without_an_end_needs_a_size() -> None:
    with pytest.raises(InputError, match=r"data.options.size: required, because the tasks of count_letters never end"):
        problems_of(data_of("count-letters", agent=LOCAL))


@pytest.mark.parametrize(
    ("data", "rule"),
    [
        ("{verifiers: no-such-set}", "data.verifiers no_such_set: taskset 'no_such_set' not found"),
        ("{verifiers: count-letters, options: {taskset: {leter: e}}}", "count_letters: taskset.leter: Extra inputs"),
        ("{verifiers: three-guesses, options: {id: agentic-judge}}", "one policy alone can be trained"),
    ],
)
def test_a_wrong_name_or_option_is_refused_by_name(tmp_path: Path, data: str, rule: str) -> None:
    with pytest.raises(ArlError) as caught:
        ShortRun(tmp_path, f"data={data}")
    assert rule in str(caught.value)
