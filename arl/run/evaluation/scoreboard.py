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

from arl.errors import DataError
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
        self._file = run / EVALUATIONS / SCORES
        self._checkpoints = run / CHECKPOINTS
        self._decides = decides
        self._recorder = recorder
        self._note = note
        self._scores = {scores.version: scores for scores in _read(self._file) if scores.version <= version}
        self._write()
        for scores in self._scores.values():
            self._record(scores.accuracies)
        self._keep_best()

    @property
    def best(self) -> Scores | None:
        """Return the scores of the best version so far; None: the suite that decides was not measured.

        A version whose checkpoint is gone is none.
        """
        known = [(scores.of(self._decides), scores) for scores in self._scores.values()]
        ranked = [
            (value, -scores.version)
            for value, scores in known
            if value is not None and (self._checkpoints / scores.model).exists()
        ]
        return self._scores[-max(ranked)[1]] if ranked else None

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
        self._write()  # first: what it holds is recorded, now or when the run is resumed
        self._record(accuracies)
        self._keep_best()
        best = self.best
        is_best = best is not None and best.version == version
        text = ", ".join(f"{accuracy.suite} {accuracy.mean_reward:.3f}" for accuracy in accuracies)
        self._note(f"evaluation of version {version}: {text}{' (the best so far)' if is_best else ''}")

    def _record(self, accuracies: Sequence[Accuracy]) -> None:
        for accuracy in accuracies:
            if not self._recorder.has_evaluated(accuracy):
                self._recorder.evaluated(accuracy)

    def _keep_best(self) -> None:
        """Make checkpoints/best the best version, or remove it."""
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

    def _write(self) -> None:
        with writing(self._file):
            self._file.parent.mkdir(exist_ok=True)
            self._checkpoints.mkdir(exist_ok=True)
            replace_file(self._file, msgspec.json.Encoder().encode_lines(self._scores.values()))


def _read(file: Path) -> list[Scores]:
    if not file.exists():
        return []
    try:
        return msgspec.json.Decoder(Scores).decode_lines(file.read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise DataError(f"{file}: cannot be read ({error}); remove it, and its versions are measured again") from error
