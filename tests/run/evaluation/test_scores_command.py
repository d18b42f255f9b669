"""`arl scores` as a person types it, on what `arl eval` wrote: models of one protocol share a table, others do not."""

import re
from pathlib import Path
from subprocess import CompletedProcess

from arl.run.evaluation.results import SCORES, Scored, SuiteOutput, read_scores
from tests.forks import arl


def write(directory: Path, scored: Scored, model: str, **protocol: object) -> str:
    """Write the scores of another model, or under another protocol; return its fingerprint."""
    directory.mkdir()
    output = SuiteOutput(directory, scored.protocol | protocol, scored.model | {"name": model})
    return output.finish(scored.score).fingerprint


def test_scores_of_one_protocol_share_a_table_and_those_of_another_one_have_their_own(
    finished: CompletedProcess[str], place: Path, tmp_path: Path
) -> None:
    (scored,) = read_scores(place / "whole" / SCORES)
    ours = write(tmp_path / "a", scored, "runs/mine/checkpoints/step_20")
    assert write(tmp_path / "b", scored, "runs/mine/checkpoints/step_40") == ours == scored.fingerprint
    unlike = write(tmp_path / "c", scored, "runs/mine/checkpoints/step_60", temperature=0.5)
    done = arl("scores", ".", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tables, differences = done.stdout.split(f"mine:Digits: [{unlike}] is not comparable with [{ours}]:\n")
    assert differences.splitlines() == ["  temperature: 1.0 → 0.5"]
    found = [first or second for first, second in re.findall(r"protocol (\w+)|(mine-step_\d+)", tables)]
    assert found == [ours, "mine-step_20", "mine-step_40", unlike, "mine-step_60"]
    refused = arl("scores", str(place / "no such"), cwd=tmp_path)
    assert refused.returncode == 2
    assert "no scores.json" in refused.stderr
