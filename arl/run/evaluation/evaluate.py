"""Run the episodes of a suite on the version that an engine serves, a bounded number at a time, and score them.

    Suite ─► (problem, sample) … ─► workers ─► Episodes: env, reward ─► Sample ─► keep: progress, files
                                                                           └─► all of them ─► SuiteScore

What an episode samples depends on (recipe's seed, suite, problem, sample) and the weights alone. So an evaluation that
goes on after an interruption samples what the uninterrupted one samples, and two versions are compared on equal draws.
"""

import asyncio
from collections.abc import Callable, Collection, Iterator

from arl.clock import now, outer_deadline
from arl.config.imports import import_function
from arl.data.text_codec import TextCodec
from arl.engine.base import Engine
from arl.errors import Rejected, leaves
from arl.reward.grading import accuracy_of
from arl.rollout.env import Session
from arl.rollout.env_watch import EnvWatch
from arl.rollout.episodes import Episodes, Rewards
from arl.run.evaluation.scores import Sample, SuiteScore, score_samples
from arl.run.evaluation.suite import Suite
from arl.tasks.registry import env_name
from arl.types import NOT_SAMPLED, Accuracy, Grade, Problem, Trajectory

Job = tuple[Problem, str, int, Session]  # an episode to run: its problem with its name in the suite, its number

OPEN_PER_SLOT = 4  # episodes in progress, so that slots are full while others are scored or wait for an env


async def evaluate_suite(
    suite: Suite,
    engine: Engine,
    codec: TextCodec,
    rewards: Rewards,
    context: int,
    *,
    keep: Callable[[Sample], None] = lambda sample: None,
    done: Collection[Sample] = (),
    show_prompt: Callable[[Problem], str] = lambda problem: str(problem.prompt),
) -> SuiteScore:
    """Score the version that the engine serves on `suite`; the engine must not load another one meanwhile.

    Args:
        keep: is given each sample as soon as it is scored.
        done: samples that need not be run again, because an earlier evaluation of the same version kept them.
        show_prompt: writes the prompt of a problem as text, for the samples.

    Raises:
        DeadlineError: no score has come for `deadlines.step` seconds.
    """
    recipe = suite.recipe
    timeout = recipe.deadlines.step
    episodes = _episodes(suite, engine, codec, rewards, context)
    samples = list(done)
    jobs = _jobs(episodes, suite, {sample.key for sample in done})

    async def work() -> None:
        """Run one episode after the other. Consumes jobs, which all workers share; waits for its episode."""
        for problem, key, number, session in jobs:
            trajectory = await _trajectory(episodes, problem, session)
            response = session.seen_by_reward()
            error = trajectory.reward_error
            sample = Sample(
                problem_id=key,
                sample=number,
                prompt=show_prompt(problem),
                response=response.text,
                answer=problem.answer,
                extracted=suite.extract(response),
                correct=0.0 if error else accuracy_of(Grade(trajectory.reward, trajectory.reward_parts)),
                parts=trajectory.reward_parts,
                num_tokens=response.num_tokens,
                truncated=response.truncated,
                error=error,
                policy_version=int(trajectory.policy_versions.max(initial=NOT_SAMPLED)),
            )
            keep(sample)
            samples.append(sample.without_texts)
            bound.reschedule(now() + timeout)

    num_workers = min(OPEN_PER_SLOT * recipe.engine.slots * recipe.engine.replicas, suite.num_episodes)
    waiting = outer_deadline(timeout, "controller", f"a score of suite {suite.name}")
    async with waiting as bound, asyncio.TaskGroup() as workers:
        for _ in range(num_workers):
            workers.create_task(work())
    return score_samples(suite.name, samples, recipe.seed)


def _episodes(suite: Suite, engine: Engine, codec: TextCodec, rewards: Rewards, context: int) -> Episodes:
    recipe = suite.recipe
    sampling = recipe.eval
    is_greedy = sampling.temperature == 0
    changes = {
        "group_size": sampling.samples,
        "temperature": sampling.temperature or 1.0,
        "max_new_tokens": suite.max_new_tokens,
    }
    return Episodes(
        engine,
        codec,
        rewards,
        env=import_function(env_name(recipe), "rollout.env"),
        watch=EnvWatch(env_name(recipe), recipe.deadlines.episode),
        rollout=recipe.rollout.model_copy(update=changes),
        seed=recipe.seed,
        max_length=context,
        top_p=sampling.top_p,
        top_k=1 if is_greedy else sampling.top_k or -1,
    )


def _jobs(episodes: Episodes, suite: Suite, done: set[tuple[str, int]]) -> Iterator[Job]:
    """Yield the episodes that are not done, those of one problem after the other: they share the prefill of a prompt.

    Sessions are opened when they are needed, so that there are never more than the open episodes' problems.
    """
    for key, problem in zip(suite.keys(), suite.problems, strict=True):
        missing = [i for i in range(suite.recipe.eval.samples) if (key, i) not in done]
        sessions = episodes.open(f"{suite.name} {key}", problem) if missing else []
        for i in missing:
            yield problem, key, i, sessions[i]


async def _trajectory(episodes: Episodes, problem: Problem, session: Session) -> Trajectory:
    """Run an episode; one that its env has rejected is graded 0."""
    try:
        trajectory, *_ = await episodes.run(problem, [session])
    except* Rejected as rejections:
        reason = next(leaves(rejections))
        trajectory, *_ = session.trajectories(Grade(0.0, error=f"the env rejected it: {reason}"))
    return trajectory


async def measure_suite(
    suite: Suite, version: int, engine: Engine, codec: TextCodec, rewards: Rewards, context: int
) -> Accuracy:
    """Measure `version`, which the engine serves and keeps until this returns; see `evaluate_suite`."""
    score = await evaluate_suite(suite, engine, codec, rewards, context)
    assert score.version == version, f"version {version} was to be measured, and {score.version} was"
    return score.accuracy
