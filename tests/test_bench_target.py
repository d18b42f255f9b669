"""`arl bench target` says when an accuracy was reached, and refuses bad input before anything is trained."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from arl.bench.target import Race, Snapshot, _run_peer, bench_target, compare, first_at, median
from arl.cli import app
from arl.errors import InputError, RunError
from tests.forks import ROOT

QUICKSTART = ROOT / "recipes" / "quickstart.yaml"


def test_the_first_snapshot_at_the_accuracy_counts_by_its_own_step_and_time() -> None:
    snapshots = [Snapshot(step, 1.5 * step, Path(f"step_{step}")) for step in (5, 10, 15)]
    found = first_at(0.9, snapshots, [0.5, 0.9, 0.8])
    assert (found["step"], found["seconds"]) == (10, 15.0)
    assert (found["final_accuracy"], found["total_seconds"]) == (0.8, 22.5)
    never = first_at(0.95, snapshots, [0.5, 0.9, 0.8])
    assert (never["step"], never["seconds"]) == (None, None)


def test_a_system_of_which_one_run_never_arrived_has_no_median_and_no_ratio() -> None:
    medians = {"fast": median([1.0, 3.0, 2.0]), "slow": median([4.0, None, 4.0]), "peer": median([4.0])}
    assert medians == {"fast": 2.0, "slow": None, "peer": 4.0}
    assert compare(medians, ["fast", "slow"], ["peer"]) == {"fast / peer": 0.5}


@pytest.mark.parametrize(
    ("code", "complaint"),
    [
        ("print([])", "a peer prints one JSON object with `curve`"),
        ("print({})", "a peer prints one JSON object with `curve`"),
        ("print('epoch 1')", "a peer prints one JSON object with `curve`"),
        ("raise SystemExit(3)", "the peer exited with code 3"),
    ],
)
def test_a_peer_that_fails_ends_the_benchmark_with_its_command(tmp_path: Path, code: str, complaint: str) -> None:
    script = tmp_path / "peer.py"
    script.write_text(code)
    with pytest.raises(RunError, match=complaint) as caught:
        _run_peer(f"{sys.executable} {script}", tmp_path, 0, tmp_path)
    assert str(script) in str(caught.value)


def test_a_recipe_without_held_out_problems_is_refused_before_training(tmp_path: Path) -> None:
    recipe = tmp_path / "quickstart.yaml"
    recipe.write_text(QUICKSTART.read_text().replace("eval: {problems: 1024}", "eval: {problems: 0}"))
    with pytest.raises(InputError, match=r"raise eval\.problems"):
        bench_target(Race(recipe, tmp_path, 0.9), range(1), {"ours": []}, {})


@pytest.mark.parametrize(
    "arguments",
    [
        ["sync", "--repeats", "0"],
        ["target", str(QUICKSTART), "m", "--ours", "no colon"],
        ["target", str(QUICKSTART), "m", "--ours", "a: x", "--ours", "a: y"],
        ["target", str(QUICKSTART), "m", "--ours", "a: x", "--peer", "a: y"],
    ],
)
def test_bad_input_is_refused_with_exit_code_2(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 2, done.output
