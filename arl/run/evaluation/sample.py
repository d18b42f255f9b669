"""Define what an evaluation keeps of each episode, and what it computes from all of them."""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from msgspec import Struct

from arl.errors import InputError
from arl.run.evaluation.scores import Estimate, Lengths, estimate, lengths, majority, pass_at_k, powers_of_two
from arl.types import NOT_SAMPLED, Accuracy


class Sample(Struct, frozen=True, kw_only=True):
    """Hold one episode of an evaluation: a row of <suite>.parquet."""

    problem_id: str  # Problem.id; with a number behind it where the suite has the problem again
    sample: int  # from 0
    prompt: str
    response: str
    answer: str  # the problem's
    extracted: str  # the response's, by which votes are counted; empty: none was found
    correct: float  # the reward's part `correct`, or the unshaped reward where it has no such part
    parts: dict[str, float]  # as the reward function named them
    num_tokens: int  # sampled
    truncated: bool
    error: str  # why it could not be scored and counts 0; empty: it was scored
    policy_version: int  # that sampled it

    @property
    def key(self) -> tuple[str, int]:
        """Return what no other sample of the suite has."""
        return self.problem_id, self.sample


Keep = Callable[[Sample], None]


class SuiteScore(Struct, frozen=True, kw_only=True):
    """Hold the scores of one model on one suite."""

    suite: str
    version: int  # of the policy; NOT_SAMPLED if envs sampled nothing
    problems: int
    samples: int  # n, of each problem
    average: Estimate  # avg@n: the mean of `correct`
    pass_at: dict[int, Estimate]  # k -> pass@k
    majority: Estimate  # maj@n
    lengths: Lengths  # sampled tokens
    truncated: float  # share of the samples
    errors: int  # samples that could not be scored, and count 0
    parts: dict[str, float]  # mean of each part of the reward, over the samples that have it

    @property
    def accuracy(self) -> Accuracy:
        """Return it as training reports it."""
        return Accuracy(
            mean_reward=self.average.value,
            problems=self.problems,
            version=self.version,
            suite=self.suite,
            samples=self.samples,
            low=self.average.low,
            high=self.average.high,
        )


def score_samples(
    suite: str,
    samples: Collection[Sample],
    num_samples: int,
    ks: Sequence[int] = (),
    seed: int = 0,
) -> SuiteScore:
    """Compute the scores of a suite from all of its samples, in any order.

    Args:
        num_samples: n, of each problem.
        ks: the k of pass@k; none: 1, 2, 4, … up to n.
        seed: of the bootstrap.

    Raises:
        InputError: a k is above n.
    """
    by_problem: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.key):
        by_problem.setdefault(sample.problem_id, []).append(sample)
    correct = np.array([[sample.correct for sample in group] for group in by_problem.values()])
    assert correct.shape == (len(by_problem), num_samples), "every problem has all of its samples"
    votes = [
        majority([sample.extracted for sample in group], [sample.correct for sample in group])
        for group in by_problem.values()
    ]
    chosen = check_ks(ks, num_samples)
    columns = {"average": correct.mean(axis=1), "majority": np.array(votes)}
    columns |= {f"pass@{k}": pass_at_k(correct, k) for k in chosen}
    estimates = estimate(columns, seed)
    versions = {sample.policy_version for sample in samples} - {NOT_SAMPLED}
    assert len(versions) <= 1, f"an evaluation of one version was sampled by {sorted(versions)}"
    return SuiteScore(
        suite=suite,
        version=versions.pop() if versions else NOT_SAMPLED,
        problems=len(by_problem),
        samples=num_samples,
        average=estimates["average"],
        pass_at={k: estimates[f"pass@{k}"] for k in chosen},
        majority=estimates["majority"],
        lengths=lengths([sample.num_tokens for sample in samples]),
        truncated=sum(sample.truncated for sample in samples) / len(samples),
        errors=sum(bool(sample.error) for sample in samples),
        parts=_mean_parts(samples),
    )


def check_ks(ks: Sequence[int], num_samples: int) -> list[int]:
    """Return the k of pass@k to report, in order.

    Raises:
        InputError: one is below 1, or above the number of samples.
    """
    for k in ks:
        if not 1 <= k <= num_samples:
            raise InputError(f"--k {k}: pass@{k} needs {k} samples or more, and --samples is {num_samples}; raise it")
    return sorted(set(ks)) or powers_of_two(num_samples)


def _mean_parts(samples: Collection[Sample]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.parts.items():
            values.setdefault(name, []).append(value)
    return {name: sum(of_part) / len(of_part) for name, of_part in sorted(values.items())}
