"""`arl scores` as a person types it, on what `arl eval` wrote: models of one protocol share a table, others do not."""

import re
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from arl.run.evaluation.results import SCORES, Scored, SuiteOutput, read_scores
from tests.forks import arl


@pytest.fixture
def scored(finished: CompletedProcess[str], place: Path) -> Scored:
    """Return what a real evaluation has written."""
    assert finished.returncode == 0, finished.stderr
    (scored,) = read_scores(place / "whole" / SCORES)
    return scored


def write(directory: Path, scored: Scored, model: str, **protocol: object) -> str:
    """Write the scores of another model, or under another protocol; return its fingerprint."""
    directory.mkdir()
    output = SuiteOutput(directory, scored.protocol | protocol, scored.model | {"name": model})
    return output.finish(scored.score).fingerprint


def test_scores_of_one_protocol_share_a_table_and_those_of_another_one_have_their_own(
    scored: Scored, tmp_path: Path
) -> None:
    ours = write(tmp_path / "a", scored, "runs/mine/checkpoints/step_20")
    assert write(tmp_path / "b", scored, "runs/mine/checkpoints/step_40") == ours == scored.fingerprint
    unlike = write(tmp_path / "c", scored, "runs/mine/checkpoints/step_60", temperature=0.5)
    done = arl("scores", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tables, differences = done.stdout.split(f"mine:Digits: [{unlike}] is not comparable with [{ours}]:\n")
    assert differences.splitlines() == ["  temperature: 1.0 → 0.5"]
    assert re.findall(r"protocol (\w+)|(mine-step_\d+)", tables) == [
        (ours, ""),
        ("", "mine-step_20"),
        ("", "mine-step_40"),
        (unlike, ""),
        ("", "mine-step_60"),
    ]
    assert tables.count(f"{100 * scored.score.average.value:.1f}") >= 3


def test_a_directory_without_scores_is_refused(tmp_path: Path) -> None:
    refused = arl("scores", ".", cwd=tmp_path)
    assert refused.returncode == 2
    assert "no scores.json" in refused.stderr
