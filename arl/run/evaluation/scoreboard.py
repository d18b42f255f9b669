"""Keep the scores of versions that are evaluated during training, and the best of their checkpoints.

    scores of a version ─► evaluations/step_N.json ─► metrics.jsonl ─► is it the best? ─► checkpoints/best

The files outlive what a resumed run cuts off. A score that was measured is never measured again, unless its step is
trained again; each has one record in metrics.jsonl.

    evaluations/step_40.json    {"version": 40, "model": "step_40", "accuracies": [{"suite": "held_out", …}]}
    evaluations/best.json       a copy of the best one
    checkpoints/best            a link to its checkpoint, a directory that `arl eval` and `model.path` take
"""

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.launch.disk import writing
from arl.launch.durable import remove_any, replace_file, unused_name
from arl.metrics.recorder import Recorder
from arl.run.checkpoint_state import STEP, number_after
from arl.types import Accuracy

EVALUATIONS = "evaluations"  # directory in that of the run
CHECKPOINTS = "checkpoints"
BEST = "best"
MODEL_NAME = re.compile(r"(step|model)_[0-9]+")


class Scores(Struct, frozen=True):
    """Hold what was measured of one version."""

    version: int
    model: str  # name of its directory below checkpoints/
    accuracies: tuple[Accuracy, ...]  # one of each suite

    def of(self, suite: str) -> float | None:
        """Return the accuracy on one suite; None: it was not measured."""
        found = [accuracy.mean_reward for accuracy in self.accuracies if accuracy.suite == suite]
        return found[0] if found else None


class Scoreboard:
    """Record scores once each, and keep checkpoints/best pointing to the version with the best.

    Of equal scores that of the earlier version is the best, because it was trained less on the same problems.

    Args:
        run: directory of the run.
        decides: the suite by which versions are compared.
        version: that the run begins with; scores of later ones are removed, because their steps are trained again.
        note: is called with one line for each evaluation.
    """

    def __init__(self, run: Path, decides: str, version: int, recorder: Recorder, note: Callable[[str], None]) -> None:
        self._directory = run / EVALUATIONS
        self._checkpoints = run / CHECKPOINTS
        self._decides = decides
        self._recorder = recorder
        self._note = note
        self._scores = self._read(version)
        for scores in self._scores.values():
            self._record(scores.accuracies)
        self._best: Scores | None = None
        for scores in self._scores.values():
            if os.path.exists(self._checkpoints / scores.model):
                self._compare(scores)
        self._keep_best()

    @property
    def best(self) -> Scores | None:
        """Return the scores of the best version so far; None: the suite that decides was not measured."""
        return self._best

    def measured(self, version: int) -> bool:
        """Return whether this version has scores."""
        return version in self._scores

    def add(self, model: Path, accuracies: Sequence[Accuracy]) -> None:
        """Record the scores of a version, whose weights are in directory `model`.

        Raises:
            DiskError: a file cannot be written.
        """
        version = accuracies[0].version
        assert not self.measured(version), f"version {version} was measured before"
        scores = Scores(version, model.name, tuple(accuracies))
        self._write(f"step_{version}", scores)  # first: what it holds is recorded, now or when the run is resumed
        self._scores[version] = scores
        self._record(accuracies)
        is_best = self._compare(scores)
        if is_best:
            self._keep_best()
        text = ", ".join(f"{accuracy.suite} {accuracy.mean_reward:.3f}" for accuracy in accuracies)
        self._note(f"evaluation of version {version}: {text}{' (the best so far)' if is_best else ''}")

    def _record(self, accuracies: Sequence[Accuracy]) -> None:
        for accuracy in accuracies:
            if not self._recorder.has_evaluated(accuracy):
                self._recorder.evaluated(accuracy)

    def _compare(self, scores: Scores) -> bool:
        """Remember `scores` if they are the best so far; return whether they are."""
        if scores.of(self._decides) is None:
            return False
        if self._best is not None and self._rank(scores) < self._rank(self._best):
            return False
        self._best = scores
        return True

    def _rank(self, scores: Scores) -> tuple[float, int]:
        """Return what is larger for better scores. The last version may be measured before one that waits."""
        value = scores.of(self._decides)
        assert value is not None, "compared above"
        return value, -scores.version

    def _keep_best(self) -> None:
        """Make checkpoints/best and evaluations/best.json those of the best version, or remove them."""
        link = self._checkpoints / BEST
        if self._best is None:
            link.unlink(missing_ok=True)
            (self._directory / f"{BEST}.json").unlink(missing_ok=True)
            return
        self._write(BEST, self._best)
        new = link.with_name(f".{BEST}.new")
        with writing(link):
            remove_any(new)
            new.symlink_to(self._best.model)
            new.rename(link)

    def _read(self, version: int) -> dict[int, Scores]:
        """Read the scores of versions up to `version`, in order, and remove later ones.

        A damaged file is kept under another name, and its version is measured again.
        """
        found = {}
        for file in sorted(self._directory.glob(f"{STEP}*.json")):
            number = number_after(STEP, file.stem)
            if number is None:
                continue
            if number > version:
                remove_any(file)
                continue
            try:
                found[number] = _read_scores(file, number)
            except (OSError, msgspec.DecodeError) as error:
                aside = unused_name(file.with_name(f"refused_{file.name}"))
                file.replace(aside)
                self._note(f"{file} is damaged ({error}): kept as {aside.name}, and version {number} is measured again")
        return dict(sorted(found.items()))

    def _write(self, name: str, scores: Scores) -> None:
        file = self._directory / f"{name}.json"
        with writing(file):
            self._directory.mkdir(exist_ok=True)
            self._checkpoints.mkdir(exist_ok=True)
            replace_file(file, msgspec.json.format(msgspec.json.encode(scores)))


def _read_scores(file: Path, version: int) -> Scores:
    """Read the scores of a version.

    Raises:
        OSError: the file cannot be read.
        DecodeError: it holds something else.
    """
    scores: Scores = msgspec.json.decode(file.read_bytes(), type=Scores)
    are_of_version = all(accuracy.version == version for accuracy in scores.accuracies)
    if scores.version != version or not scores.accuracies or not are_of_version:
        raise msgspec.DecodeError("it does not hold the scores of this version")
    if not MODEL_NAME.fullmatch(scores.model):
        raise msgspec.DecodeError(f"{scores.model!r} is no checkpoint")
    return scores
