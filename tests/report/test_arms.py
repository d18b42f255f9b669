"""Runs of one recipe are one arm, and what differs names it."""

from pathlib import Path

from arl.report.arms import Arm, make_arms
from arl.report.runs import load_runs
from tests.report.synthetic_runs import write_run, write_sweep


def arms_in(path: Path) -> list[Arm]:
    return make_arms(load_runs([path])[0])[0]


def test_runs_that_differ_in_seed_name_and_output_are_one_arm(tmp_path: Path) -> None:
    for seed in (2, 0, 1):
        write_run(tmp_path / f"run-{seed}", [f"output.samples_every={seed + 1}"], seed=seed)
    (arm,) = arms_in(tmp_path)
    assert arm.seeds == [0, 1, 2]
    assert arm.name == "run-0"


def test_arms_are_named_by_what_differs_and_sorted_by_it_with_no_bound_last(tmp_path: Path) -> None:
    write_sweep(tmp_path, [16, 2], ["ppo", "decoupled_ppo"], seeds=1)
    write_run(tmp_path / "lagged", ["rollout.staleness=null", "rollout.lag=2", "objective.kind=ppo"])
    names = [arm.name for arm in arms_in(tmp_path)]
    assert names == [
        "staleness=2, decoupled_ppo",
        "staleness=2, ppo",
        "staleness=16, decoupled_ppo",
        "staleness=16, ppo",
        "lag=2, ppo",
    ]


def test_the_last_part_of_a_path_names_an_arm_and_where_it_is_the_same_the_runs_do(tmp_path: Path) -> None:
    for place in ("old/small", "old/large"):
        write_run(tmp_path / "models" / place, [f"model.path=/scratch/{place}", "model.tiny=null"])
    assert [arm.name for arm in arms_in(tmp_path / "models")] == ["path=large", "path=small"]
    for place in ("a/step_5", "b/step_5"):
        write_run(tmp_path / "steps" / place, [f"model.path=/scratch/{place}", "model.tiny=null"])
    assert [arm.name for arm in arms_in(tmp_path / "steps")] == ["a/step_5", "b/step_5"]


def test_of_two_runs_of_one_seed_the_finished_one_counts_and_the_other_is_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=9, is_finished=False)
    write_run(tmp_path / "b", steps=6)
    (arm,), notes = make_arms(load_runs([tmp_path])[0])
    assert [run.last_step for run in arm.runs] == [6]
    assert f"{tmp_path.name}/a: has the recipe and the seed (0) of {tmp_path.name}/b" in "\n".join(notes)
