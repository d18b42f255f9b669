"""Define the Task seam: where problems come from, how they are scored, and what a tiny model is taught before RL.

    data: {task: NAME, options: {…}} ─► Options (validated) ─► Task ─► problems ─► reward, env
                                                                  └─► warm-up stages ─► arl.train.warmup

A task is one class in one file: arl/tasks/running_checksum.py, or your own as `module:attribute`.
"""

import functools
import hashlib
import random
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from msgspec import Struct
from pydantic import Field

from arl.config.section import Positive, Section
from arl.types import Grade, Problem, Response

Split = Literal["training", "evaluation"]


class SplitSource(Struct, frozen=True):
    """Say what one side of a task holds, for `arl tasks`."""

    problems: int
    where: str  # "generated", a path, or the command that fetches what is missing
    licence: str = ""  # of the problems; empty: arl's own


class RewardFunction(Protocol):
    """Score one response.

    def score(problem: Problem, response: Response) -> float:
        return float(response.text.strip() == problem.answer)

    Args:
        problem: what was asked. All that the score depends on is in it and in the response.
        response: the text, and how many tokens of its budget it took.

    Returns:
        One finite number, or several by name, as in {"correct": 1.0, "format": 0.0}. The reward is the sum of named
        parts, each times its weight; an evaluation counts `correct` where there is such a part.
    """

    def __call__(self, problem: Problem, response: Response) -> float | dict[str, float]: ...


class EnvFunction(Protocol):
    """Drive one episode, turn by turn; see arl.rollout.env for the session.

    async def ask_once(problem: Problem, session: Session) -> None:
        await session.generate()

    Returns the reward, as a number or with named parts; or None: then the recipe's reward function scores the episode.
    """

    async def __call__(self, problem: Problem, session: Any) -> float | Grade | None: ...


class ExtractFunction(Protocol):
    """Return the answer in a response, in a form in which equal answers are equal strings; empty: there is none.

    def extract(response: Response) -> str:
        return response.text.rpartition("####")[2].strip()

    It is called in the controller's process, so it must be quick on any text.
    """

    def __call__(self, response: Response) -> str: ...


class Demonstration(NamedTuple):
    """Pair a problem with a response to learn from."""

    problem: Problem
    response: str


class WarmupStage(Struct, frozen=True, kw_only=True):
    """Describe one stage of a supervised warm-up: what is shown, and when it ends.

    A stage with a `target_accuracy` ends once sampled accuracy on fresh questions reaches it, and fails the warm-up if
    it does not within `steps`. Any other stage takes `steps`.
    """

    name: str  # for progress lines, as in "learning the task"
    demonstrate: Callable[[random.Random, int], Sequence[Demonstration]]  # draws so many, of the training split
    ask: Callable[[random.Random, int], Sequence[Problem]]  # draws so many questions to measure accuracy on
    steps: int  # optimizer steps, at most
    learning_rate: float  # peak
    schedule: Literal["decay", "constant"] = "decay"  # 50 steps of ramp, then linear to 10 % at `steps`; or constant
    target_accuracy: float | None = None  # mean reward of one sampled response to each question


class Task(Protocol):
    """Provide problems, their reward, and what else a run may take from the task. Inherit from it to keep its defaults.

    Reward and env are static, because reward workers call them by name without making the task: what they need to
    know of a problem is in the problem, for instance in its metadata.

    class Sums(Task):
        class Options(Section):
            largest: Positive = 9
            \"\"\"Largest summand.\"\"\"

        characters = "0123456789+="

        def __init__(self, options: Options) -> None:
            self.largest = options.largest

        def problems(self, split: Split, seed: int) -> list[Problem]:
            summands = range(self.largest + 1)
            sums = [Problem(f"{a}+{b}=", answer=str(a + b)) for a in summands for b in summands]
            return [p for p in sums if is_held_out(p, 0.1) == (split == "evaluation")]

        @staticmethod
        def reward(problem: Problem, response: Response) -> float:
            return float(response.text == problem.answer)
    """

    Options: ClassVar[type[Section]] = Section
    """The fields of `data.options`, each with a type, a default and a docstring."""

    characters: ClassVar[str | None] = None
    """Vocabulary of a tiny model, one token a character. None: the task needs a model with its own tokenizer."""

    marks: ClassVar[tuple[str, ...]] = ()
    """Further tokens of it, of several characters, as in ("<|user|>", "<tool_call>")."""

    chat_template: ClassVar[str | None] = None
    """Template of its conversations, for tools and turns. None: prompts are plain text."""

    env: ClassVar[EnvFunction | None] = None
    """A static method that drives an episode, where `rollout.env` is not given. None: a single turn."""

    extract: ClassVar[ExtractFunction | None] = None
    """A static method that finds the answer in a response, for the majority votes of an evaluation. None: the answer is
    the whole response, without the space around it."""

    reward_weights: ClassVar[Mapping[str, float]] = {}
    """Weights of the named parts of its reward, where `reward.weights` is not given. A part without one counts 1."""

    evaluation: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the recipe's `eval` section for this task, as in {"temperature": 0.6}."""

    prompting: ClassVar[Mapping[str, Any]] = {}
    """Defaults of the recipe's `data` section for this task, as in {"suffix": "\\nPut the answer in \\\\boxed{}."}."""

    notes: Sequence[str] = ()
    """What a user should know of the problems that it has returned last."""

    @abstractmethod
    def __init__(self, options: Any) -> None:
        """Make the task from its validated Options."""

    @abstractmethod
    def problems(self, split: Split, seed: int) -> Sequence[Problem]:
        """Return every problem of one side, in an order that depends on `seed` alone. No problem is on both sides."""

    @staticmethod
    @abstractmethod
    def reward(problem: Problem, response: Response) -> float | dict[str, float]:
        """Score one response, where `reward.function` is not given; see RewardFunction."""

    @classmethod
    def split_source(cls, split: Split) -> SplitSource | None:
        """Say what this side holds, and where it is; None: the task has no such side. Downloads nothing."""
        made = cls(cls.Options()).problems(split, seed=0)
        return SplitSource(len(made), "generated")

    def warmup(self) -> Sequence[WarmupStage]:
        """Return the stages that teach a tiny model before RL. None by default: the task demonstrates nothing."""
        return ()


class DrawnOptions(Section):
    """Set the size of the problem set."""

    size: Annotated[Positive, Field(le=50_000)] = 20_000
    """Problems to draw, both sides together."""
    eval_fraction: ClassVar[float] = 0.1  # held out for evaluation


def drawn_problems(
    draw: Callable[[random.Random], Problem], options: DrawnOptions, split: Split, seed: int
) -> list[Problem]:
    """Draw the problems of both sides, and return those of one."""
    wants_held_out = split == "evaluation"
    drawn = _drawn(draw, options.size, seed)
    return [problem for problem in drawn if is_held_out(problem, options.eval_fraction) == wants_held_out]


@functools.lru_cache(maxsize=1)  # one side is asked for after the other, and by every arm of a sweep
def _drawn(draw: Callable[[random.Random], Problem], size: int, seed: int) -> tuple[Problem, ...]:
    rng = random.Random(f"problems {seed}")
    return tuple(draw(rng) for _ in range(size))


def draw_for_training(draw: Callable[[random.Random], Problem], options: DrawnOptions, rng: random.Random) -> Problem:
    """Draw problems until one is not held out."""
    while is_held_out(problem := draw(rng), options.eval_fraction):
        pass
    return problem


def chat_of_examples(system: str, examples: Sequence[tuple[str, str]], question: str) -> list[dict[str, str]]:
    """Write the chat of a question, after a system message and worked examples."""
    turns = [("system", system)]
    for asked, answer in examples:
        turns += [("user", asked), ("assistant", answer)]
    return [{"role": role, "content": content} for role, content in (*turns, ("user", question))]


def is_held_out(problem: Problem, fraction: float) -> bool:
    """Decide by the problem's content alone, so that no seed, file or order can move it into training."""
    digest = hashlib.sha256(f"held out? {problem.id}".encode()).digest()
    uniform = int.from_bytes(digest[:8], "big")  # in 0 … 2**64 − 1
    return uniform < fraction * 2**64


class TwoStageOptions(Section):
    """Set the length, the learning rates and the bad habits of the two stages. A task may have other constants."""

    skill_accuracy: ClassVar[float] = 0.95  # sampled, on fresh problems: ends the first stage
    skill_steps: ClassVar[int] = 800  # after which the first stage fails
    skill_learning_rate: ClassVar[float] = 2e-3  # peak; 50 steps of ramp, then linear to 10 % at skill_steps
    habit_steps: ClassVar[int] = 50
    habit_learning_rate: ClassVar[float] = 1e-3  # constant
    blurt: ClassVar[float] = 0.7  # share of the second stage's demonstrations that answer without working
    slip: ClassVar[float] = 0.1  # chance of an error at each of its working steps


class Demonstrate(Protocol):
    """Draw `count` demonstrations, which show the bad habits with the chances `blurt` and `slip`."""

    def __call__(self, rng: random.Random, count: int, blurt: float, slip: float) -> Sequence[Demonstration]: ...


def two_stage_warmup(
    options: TwoStageOptions,
    demonstrate: Demonstrate,
    ask: Callable[[random.Random, int], Sequence[Problem]],
) -> list[WarmupStage]:
    """Return the two stages.

    Args:
        demonstrate: draws what both stages show.
        ask: draws so many questions, on which accuracy is measured.
    """
    skill = WarmupStage(
        name="learning the task",
        demonstrate=partial(demonstrate, blurt=0.0, slip=0.0),
        ask=ask,
        steps=options.skill_steps,
        learning_rate=options.skill_learning_rate,
        target_accuracy=options.skill_accuracy,
    )
    habits = WarmupStage(
        name="with bad habits",
        demonstrate=partial(demonstrate, blurt=options.blurt, slip=options.slip),
        ask=ask,
        steps=options.habit_steps,
        learning_rate=options.habit_learning_rate,
        schedule="constant",
    )
    return [skill, habits]
