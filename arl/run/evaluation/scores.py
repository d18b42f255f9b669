"""Keep what an evaluation needs of each episode, and compute the scores of a suite from all of them.

    Sample … ─► correct (P, n) ─► per problem: avg@n, pass@k, maj@n (P,) ─► mean over problems, with an interval

Shapes: P problems of a suite, n samples of each. `correct` is 0 or 1, or lies between them where a reward gives part
of the credit.
"""

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

import msgspec
import numpy as np
from msgspec import Struct

from arl.config.scoring_sections import HELD_OUT
from arl.types import NOT_SAMPLED, Accuracy

RESAMPLES = 10_000
COVERAGE = 0.95
DRAWS = 100  # resamples that are made at a time


class Estimate(Struct, frozen=True):
    """Hold a mean over problems, and the interval that covers it in 95 % of the suites like this one."""

    value: float
    low: float
    high: float


class Sample(Struct, frozen=True, kw_only=True):
    """Hold one episode of an evaluation: a line of <suite>.jsonl."""

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

    @property
    def without_texts(self) -> "Sample":
        """Return it without prompt and response, which may be gigabytes together."""
        return msgspec.structs.replace(self, prompt="", response="")


class SuiteScore(Struct, frozen=True, kw_only=True):
    """Hold the scores of one model on one suite."""

    suite: str
    version: int  # of the policy; NOT_SAMPLED if envs sampled nothing
    problems: int
    samples: int  # n, of each problem
    average: Estimate  # avg@n: the mean of `correct`
    pass_at: dict[int, Estimate]  # k -> pass@k
    majority: Estimate  # maj@n
    mean_tokens: float  # sampled, of one sample
    truncated: float  # share of the samples
    errors: int  # samples that could not be scored, and count 0

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


def with_mean(accuracies: Sequence[Accuracy]) -> tuple[Accuracy, ...]:
    """Put the mean over the held-out problems of several sources first. Each source counts alike.

    >>> of = [Accuracy(mean, 8, version=1, suite=f"held_out/{name}") for name, mean in (("a", 0.2), ("b", 0.6))]
    >>> [(each.suite, each.mean_reward, each.problems) for each in with_mean(of)][:2]
    [('held_out', 0.4, 16), ('held_out/a', 0.2, 8)]
    """
    own = [each for each in accuracies if each.suite.startswith(f"{HELD_OUT}/")]
    if not own:
        return tuple(accuracies)
    mean = Accuracy(
        mean_reward=fmean(each.mean_reward for each in own),
        problems=sum(each.problems for each in own),
        version=own[0].version,
        suite=HELD_OUT,
        samples=own[0].samples,
    )
    return (mean, *accuracies)


def score_samples(suite: str, samples: Collection[Sample], seed: int = 0) -> SuiteScore:
    """Compute the scores of a suite from all of its samples, in any order.

    Args:
        samples: equally many of each problem.
        seed: of the bootstrap.
    """
    by_problem: dict[str, list[Sample]] = {}
    for sample in sorted(samples, key=lambda sample: sample.key):
        by_problem.setdefault(sample.problem_id, []).append(sample)
    correct = np.array([[sample.correct for sample in group] for group in by_problem.values()])
    votes = [
        majority([sample.extracted for sample in group], [sample.correct for sample in group])
        for group in by_problem.values()
    ]
    num_samples = correct.shape[1]
    chosen = [*(1 << i for i in range((num_samples - 1).bit_length())), num_samples]  # 1, 2, 4, … n
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
        mean_tokens=fmean(sample.num_tokens for sample in samples),
        truncated=sum(sample.truncated for sample in samples) / len(samples),
        errors=sum(bool(sample.error) for sample in samples),
    )


def pass_at_k(correct: np.ndarray, k: int) -> np.ndarray:
    """Compute pass@k of each problem: how probable a success is among k of its n samples, without bias.

    This is 1 − C(n − c, k) / C(n, k) for c right samples, eq. 1 of Chen et al. (https://arxiv.org/abs/2107.03374).
    It is computed as the expected best score of k samples drawn without replacement, which is the same for scores of
    0 and 1, and is defined for those between as well: the i-th smallest of n scores is the best of C(i − 1, k − 1) of
    the C(n, k) subsets. The weights are products of factors below 1, so that nothing overflows.

    Args:
        correct: (P, n) float.

    Returns:
        (P,) float64.
    """
    n = correct.shape[1]
    weights = np.zeros(n)
    weights[n - 1] = k / n
    for i in range(n - 1, 0, -1):  # from the i + 1-th smallest to the i-th smallest
        weights[i - 1] = weights[i] * max(i - k + 1, 0) / i
    scores: np.ndarray = np.sort(correct, axis=1) @ weights
    return scores


def majority(answers: Sequence[str], correct: Sequence[float]) -> float:
    """Score the answer that most samples of one problem gave: maj@n.

    Samples with equal answers are one group, and the score of a group is its mean. If several groups are largest, the
    result is the mean of their scores, which is what breaking the tie at random would give on average. A sample
    without an answer does not vote. If none votes, the score is 0.

    Args:
        answers: the canonical answer of each sample; empty: it has none.
        correct: its score.
    """
    groups: dict[str, list[float]] = {}
    for answer, score in zip(answers, correct, strict=True):
        if answer:
            groups.setdefault(answer, []).append(score)
    if not groups:
        return 0.0
    largest = max(len(group) for group in groups.values())
    return fmean(fmean(group) for group in groups.values() if len(group) == largest)


def estimate(columns: Mapping[str, np.ndarray], seed: int) -> dict[str, Estimate]:
    """Compute the mean over problems of every column, with a percentile interval by bootstrap over problems.

    All columns are resampled together, `RESAMPLES` times. With one problem, the interval is a point. Where every
    problem has one score, it is a point as well: it says nothing of the problems that the suite lacks.

    Args:
        columns: name -> (P,) float, the score of each problem.
        seed: of the resampling.
    """
    values = np.stack(list(columns.values()), axis=1)  # (P, columns)
    rng = np.random.default_rng(seed)
    num_problems = len(values)
    shares = np.full(num_problems, 1 / num_problems)
    draws = [rng.multinomial(num_problems, shares, size=DRAWS) @ values for _ in range(RESAMPLES // DRAWS)]
    tail = 100 * (1 - COVERAGE) / 2
    bounds = np.percentile(np.concatenate(draws) / num_problems, [tail, 100 - tail], axis=0)
    rows = np.stack([values.mean(axis=0), *bounds], axis=1).tolist()  # floats: JSON knows no numpy
    return {name: Estimate(*row) for name, row in zip(columns, rows, strict=True)}
