"""Sources are mixed exactly by their weights, each in whole epochs; a curriculum skips what teaches nothing."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from arl.data.problem_order import ProblemOrder
from arl.types import Problem

WEIGHTS = st.dictionaries(
    st.sampled_from("abcdef"), st.floats(0.01, 100).map(lambda weight: round(weight, 2)), min_size=2
)


def mixed(weights: dict[str, float], curriculum: int | None = None) -> ProblemOrder:
    """Return an order whose sources have seven problems each."""
    problems = [Problem(f"{name}{i}", source=name) for name in weights for i in range(7)]
    return ProblemOrder(problems, 0, weights, {} if curriculum is None else dict.fromkeys(weights, curriculum))


@given(WEIGHTS, st.integers(1, 300))
def test_after_any_number_of_problems_each_source_has_had_its_share_to_within_one(
    weights: dict[str, float], count: int
) -> None:
    order = mixed(weights)
    had: Counter[str] = Counter()
    for number in range(1, count + 1):
        had[next(order).source] += 1
        for name, weight in weights.items():
            assert abs(had[name] - number * weight / sum(weights.values())) < 1 + 1e-9


@given(WEIGHTS)
def test_each_source_hands_out_all_its_problems_before_one_comes_again(weights: dict[str, float]) -> None:
    order = mixed(weights)
    seen: dict[str, list[str]] = {name: [] for name in weights}
    for _ in range(200):
        problem = next(order)
        seen[problem.source].append(problem.id)
    for ids in seen.values():
        epochs = [ids[begin : begin + 7] for begin in range(0, len(ids), 7)]
        assert all(len(set(epoch)) == len(epoch) for epoch in epochs)
        assert len({frozenset(epoch) for epoch in epochs if len(epoch) == 7}) <= 1


@given(WEIGHTS, st.integers(0, 60), st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=120, max_size=120))
def test_an_order_goes_on_from_any_place_as_if_it_had_not_been_interrupted(
    weights: dict[str, float], count: int, rates: list[float]
) -> None:
    whole = mixed(weights, curriculum=2)
    problems = []
    states = {}
    for number, rate in enumerate(rates):
        if number == count:
            states = whole.states()
        problems.append(next(whole))
        whole.learned(problems[-1], rate)
    resumed = mixed(weights, curriculum=2)
    resumed.restore(states)
    for problem, rate in zip(problems[count:], rates[count:], strict=True):
        assert next(resumed) == problem
        resumed.learned(problem, rate)
    assert resumed.metrics() == whole.metrics()


def test_what_was_always_or_never_solved_is_skipped_for_some_epochs_and_then_tried_again() -> None:
    names = "solved", "unsolved", "both"
    rates = {"solved": 1.0, "unsolved": 0.0, "both": 0.5}
    order = ProblemOrder([Problem(name) for name in names], 0, curricula={"": 2})
    epochs = []
    skipped = []
    for size in (3, 1, 1, 3, 1):
        epochs.append([str(next(order).prompt) for _ in range(size)])
        for name in epochs[-1]:
            order.learned(Problem(name), rates[name])
        skipped.append(order.metrics()["curriculum/skipped"])
    assert [sorted(epoch) for epoch in epochs] == [sorted(names), ["both"], ["both"], sorted(names), ["both"]]
    assert skipped[0] == skipped[3] == 2 / 3
    order.learned(Problem("solved"), 0.5)
    assert order.metrics()["curriculum/skipped"] == 1 / 3


def test_a_run_whose_problems_are_all_skipped_tries_them_again() -> None:
    problems = [Problem(str(i)) for i in range(5)]
    order = ProblemOrder(problems, 0, curricula={"": 50})
    for problem in problems:
        order.learned(problem, 1.0)
    assert {next(order).id for _ in problems} == {problem.id for problem in problems}
