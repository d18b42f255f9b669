"""Provide environments of the library verifiers as tasks: its problems, its agents, its rewards, unchanged.

data: {verifiers: gsm8k-v1} ─► the attribute `gsm8k_v1` of this module, made on demand ─► its taskset ─► problems

    run_slot ─► harness ─► interception server of verifiers ─► session.endpoint() ─► the policy
       └─► scoring ─► Trace: rewards and metrics ─► Grade

The options of a task are the fields of the environment's own configuration, and those of VerifiersOptions. Where the
agent runs is among them: `agent: {runtime: {type: subprocess}}` is this machine.
"""

import functools
import itertools
from typing import Any, ClassVar, Self

from pydantic import ConfigDict, ValidationError, model_validator

from arl.config.section import OpenFraction, Positive, Section
from arl.errors import InputError, RecipeError
from arl.tasks.base import Split, Task, is_held_out
from arl.types import Grade, Problem, Response

try:
    import verifiers.v1 as vf
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.types import content_text
except ImportError as error:
    raise ImportError(
        "the package verifiers is missing, or older than 0.4: pip install 'verifiers>=0.4,<0.5'"
    ) from error

MODEL = "policy"  # as session.endpoint() calls it
NO_KEY = "ARL_NO_KEY"  # an environment variable that nobody sets: the address of an endpoint is its secret


class VerifiersOptions(Section):
    """Say which problems are taken, and how they are divided. All other fields are the environment's own."""

    model_config = ConfigDict(extra="allow")
    environment: ClassVar[str]

    size: Positive | None = None
    """Problems to take, both sides together. null: all; a set without an end needs a number."""
    eval_fraction: OpenFraction = 0.1
    """Share of the problems held out for evaluation, by a hash of their prompts."""

    @property
    def config(self) -> Any:
        """Return the environment's own configuration."""
        own = dict(self.model_extra or {})
        return vf.resolve_env_config({**own, "taskset": {**own.get("taskset", {}), "id": self.environment}})

    @model_validator(mode="after")
    def _validate(self) -> Self:
        what = f"data.options of the environment {self.environment}"
        try:
            config = self.config
        except ValidationError as error:
            mistakes = (f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise ValueError(f"{what}: {'; '.join(mistakes)}") from None
        agents = sorted(agent_config_fields(config))
        if len(agents) > 1:
            raise ValueError(f"{what}: it has the agents {', '.join(agents)}, and one policy alone can be trained")
        return self


class VerifiersEnvironment(Task):
    """Run the episodes of one environment."""

    def __init__(self, options: VerifiersOptions) -> None:
        self._options = options

    def problems(self, split: Split, seed: int) -> list[Problem]:
        """Return the tasks of one side, in their own order.

        Raises:
            InputError: they have no end, and the options give no `size`.
        """
        config = self._options.config
        taskset = vf.load_taskset(config.taskset)
        if self._options.size is None and not taskset.bounded:
            raise InputError(f"data.options.size: required, because the tasks of {self._options.environment} never end")
        settings = config.model_dump(mode="json")
        tasks = [_problem(task.data, settings) for task in itertools.islice(taskset, self._options.size)]
        is_wanted = split == "evaluation"
        return [task for task in tasks if is_held_out(task, self._options.eval_fraction) is is_wanted]

    @staticmethod
    async def env(problem: Problem, session: Any) -> Grade:
        """Let the environment run and score its agent, whose requests the policy answers.

        Raises:
            RuntimeError: the environment failed, and not for want of context or of token budget.
        """
        environment = vf.load_environment(vf.resolve_env_config(problem.metadata["environment"]))
        kind = type(environment.taskset).task_type()
        data = kind.data_type().model_validate(problem.metadata["task"])
        (slot,) = environment.slots(kind(data, environment.config.taskset.task))
        async with session.endpoint() as url, environment.serving():
            client = vf.EvalClientConfig(base_url=url, api_key_var=NO_KEY)
            episode = await environment.run_slot(slot, vf.ModelContext(MODEL, client))
        if not episode.ok and not session.is_over:
            errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
            raise RuntimeError(f"{errors[-1].type}: {errors[-1].message}" if errors else "it did not complete")
        if len(episode.traces) != 1:
            raise RuntimeError(f"the environment ran its agent {len(episode.traces)} times; give one that runs it once")
        return _grade(episode.traces[0])

    @staticmethod
    def reward(problem: Problem, response: Response) -> float:
        """Refuse, because the environment scores its episodes."""
        raise InputError("an environment of verifiers scores its episodes itself; leave out reward.function")


def _problem(data: Any, settings: dict[str, Any]) -> Problem:
    """Return the problem of a task. What the agent asks first is its own; the prompt here names the problem."""
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    asked = data.prompt
    if asked is None or isinstance(asked, str):
        messages = [{"role": "user", "content": asked or data.description or data.name or f"task {data.idx}"}]
    else:
        messages = [{"role": each.role, "content": content_text(each.content)} for each in asked]
    metadata = {"environment": settings, "task": data.model_dump(mode="json")}
    return Problem([*system, *messages], answer=str(getattr(data, "answer", "")), metadata=metadata)


def _grade(trace: Any) -> Grade:
    """Return the environment's reward, with its rewards and metrics as named parts."""
    parts = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    parts |= {name: float(reward.score) for name, reward in trace.rewards.items() if reward is not None}
    return Grade(float(trace.reward), parts)


@functools.cache
def __getattr__(name: str) -> type[Task]:
    """Make the task of the environment `name`."""
    if name.startswith("__"):  # Python looks for such names in every module
        raise AttributeError(name)
    try:
        vf.taskset_config_type(name)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise RecipeError(f"data.verifiers {name}: {error}") from error
    options = type("Options", (VerifiersOptions,), {"environment": name, "__annotations__": {}})
    return type(name, (VerifiersEnvironment,), {"Options": options, "__doc__": f"Run episodes of {name}."})
