"""A suite is evaluated with a bounded number of open episodes, and what is sampled depends on its problems alone."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import pytest

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import DeadlineError
from arl.run.evaluation.evaluate import evaluate_suite
from arl.run.evaluation.scores import Sample, SuiteScore
from arl.run.evaluation.suite import Suite, held_out_suites
from arl.types import GenerateRequest, Grade, Increment, Problem, Response
from tests.fakes import NullCodec, NullEngine


def make_suite(problems: int = 6, slots: int = 2, **sampling: Any) -> Suite:
    values = {
        "model": {"tiny": {}},
        "data": {"task": "running_checksum"},
        "rollout": {"max_new_tokens": 50},
        "eval": {"samples": 3} | sampling,
        "engine": {"slots": slots},
        "deadlines": {"step": 30.0},
    }
    (suite,) = held_out_suites(Recipe.model_validate(values), [Problem(f"{i}") for i in range(problems)])
    return suite


class CountingEngine(NullEngine):
    """Answers with as many tokens as a request's seed says, and remembers the most requests that were open at once."""

    def __init__(self) -> None:
        super().__init__(length_of=lambda seed: 1 + seed % 40)
        self.requests: list[GenerateRequest] = []
        self.open = 0
        self.most = 0

    async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
        """See Engine."""
        self.requests.append(request)
        self.open += 1
        self.most = max(self.most, self.open)
        async for increment in super().generate(request):
            yield increment
        self.open -= 1


class LengthRewards:
    """Scores 1 for an even number of tokens; problem 3 cannot be scored."""

    async def score(self, problem: Problem, response: Response) -> Grade:
        """See Rewards."""
        if problem.prompt == "3":
            return Grade(0.0, {"correct": 1.0}, "it hung")
        return Grade(5.0, {"correct": float(response.num_tokens % 2 == 0)})


def evaluate(suite: Suite, engine: CountingEngine, done: Collection[Sample] = ()) -> tuple[SuiteScore, list[Sample]]:
    kept: list[Sample] = []

    async def main() -> SuiteScore:
        return await evaluate_suite(suite, engine, NullCodec(), LengthRewards(), 100, keep=kept.append, done=done)

    return clock.run(main, virtual=True), kept


def by_key(samples: Collection[Sample]) -> list[Sample]:
    return sorted(samples, key=lambda sample: sample.key)


def test_what_is_sampled_depends_neither_on_how_many_are_open_nor_on_which_problems_are_beside() -> None:
    engine = CountingEngine()
    _, alone = evaluate(make_suite(problems=2, slots=1), engine)
    assert engine.most == 4
    _, beside = evaluate(make_suite(problems=6, slots=32), CountingEngine())
    keys = {sample.key for sample in alone}
    assert len(keys) == 6
    assert by_key(alone) == by_key([sample for sample in beside if sample.key in keys])


def test_an_evaluation_that_goes_on_runs_only_what_is_missing_and_has_the_same_score() -> None:
    suite = make_suite()
    whole, samples = evaluate(suite, CountingEngine())
    done = samples[:11]
    engine = CountingEngine()
    continued, rest = evaluate(suite, engine, done=done)
    assert continued == whole
    assert len(engine.requests) == 18 - 11
    assert by_key([*done, *rest]) == by_key(samples)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        ({"temperature": 0.0, "samples": 1}, (1.0, 1.0, 1)),  # the most probable token alone
        ({"temperature": 0.6, "top_p": 0.95}, (0.6, 0.95, -1)),
    ],
)
def test_the_engine_samples_as_the_section_says(sampling: dict[str, Any], expected: tuple[float, ...]) -> None:
    engine = CountingEngine()
    evaluate(make_suite(problems=1, max_new_tokens=45, **sampling), engine)
    asked = engine.requests[0].sampling
    assert [asked.temperature, asked.top_p, asked.top_k] == list(expected)
    assert asked.max_new_tokens == 45


def test_the_part_correct_is_the_score_and_a_sample_that_could_not_be_scored_counts_0() -> None:
    score, kept = evaluate(make_suite(), CountingEngine())
    even = [sample for sample in kept if sample.num_tokens % 2 == 0 and sample.prompt != "3"]
    assert score.average.value == pytest.approx(len(even) / 18)
    assert score.errors == 3
    assert {sample.error for sample in kept if sample.prompt == "3"} == {"it hung"}


def test_an_evaluation_that_stands_still_is_given_up_with_what_it_waited_for() -> None:
    suite = make_suite(problems=1)

    class StuckEngine(CountingEngine):
        async def generate(self, request: GenerateRequest) -> AsyncIterator[Increment]:
            yield Increment((1,), (-1.0,), (0,))
            await asyncio.Event().wait()

    with pytest.raises(DeadlineError, match="controller waited 30 s for a score of suite held_out"):
        evaluate(suite, StuckEngine())
