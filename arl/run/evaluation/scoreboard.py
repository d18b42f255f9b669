"""Keep the scores of versions that are evaluated during training, and the best of their checkpoints.

    scores of a version ─► evaluations/scores.jsonl ─► metrics.jsonl ─► is it the best? ─► checkpoints/best

The file outlives what a resumed run cuts off. A score that was measured is never measured again, unless its step is
trained again; each has one record in metrics.jsonl.

    evaluations/scores.jsonl    {"version": 40, "model": "step_40", "accuracies": [{"suite": "held_out", …}]}
    checkpoints/best            a link to the best checkpoint, a directory that `arl eval` and `model.path` take
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.files import remove_any, replace_file, writing
from arl.metrics.recorder import Recorder
from arl.types import Accuracy

EVALUATIONS = "evaluations"  # directory in that of the run
CHECKPOINTS = "checkpoints"
BEST = "best"
SCORES = "scores.jsonl"


class Scores(Struct, frozen=True):
    """Hold what was measured of one version."""

    version: int
    model: str  # name of its directory below checkpoints/
    accuracies: tuple[Accuracy, ...]  # one of each suite


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
        self._file = run / EVALUATIONS / SCORES
        self._checkpoints = run / CHECKPOINTS
        self._decides = decides
        self._recorder = recorder
        self._note = note
        lines = self._file.read_bytes() if self._file.exists() else b""
        known = msgspec.json.Decoder(Scores).decode_lines(lines)
        self._scores = {scores.version: scores for scores in known if scores.version <= version}
        self._write()

    @property
    def best(self) -> Scores | None:
        """Return the scores of the best version so far; None: the suite that decides was not measured.

        A version whose checkpoint is gone is none.
        """
        ranked = {
            (accuracy.mean_reward, -scores.version): scores
            for scores in self._scores.values()
            for accuracy in scores.accuracies
            if accuracy.suite == self._decides and (self._checkpoints / scores.model).exists()
        }
        return ranked[max(ranked)] if ranked else None

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
        self._scores[version] = Scores(version, model.name, tuple(accuracies))
        self._write()
        is_best = self.best is self._scores[version]
        text = ", ".join(f"{accuracy.suite} {accuracy.mean_reward:.3f}" for accuracy in accuracies)
        self._note(f"evaluation of version {version}: {text}{' (the best so far)' if is_best else ''}")

    def _write(self) -> None:
        """Write the file; then record what is not recorded, now or by a run that is resumed; then choose the best."""
        with writing(self._file):
            self._file.parent.mkdir(exist_ok=True)
            self._checkpoints.mkdir(exist_ok=True)
            replace_file(self._file, msgspec.json.Encoder().encode_lines(self._scores.values()))
        for scores in self._scores.values():
            for accuracy in scores.accuracies:
                if not self._recorder.has_evaluated(accuracy):
                    self._recorder.evaluated(accuracy)
        link = self._checkpoints / BEST
        best = self.best
        if best is None:
            link.unlink(missing_ok=True)
            return
        new = link.with_name(f".{BEST}.new")
        with writing(link):
            remove_any(new)
            new.symlink_to(best.model)
            new.rename(link)
