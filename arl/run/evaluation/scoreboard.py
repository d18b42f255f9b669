"""Keep the scores of versions that are evaluated during training, and the best of their checkpoints.

    scores of a version ─► evaluations/scores.jsonl ─► metrics.jsonl ─► is it the best? ─► checkpoints/best

The file outlives what a resumed run cuts off. A score that was measured is never measured again, unless its step is
trained again; each has one record in metrics.jsonl.

    evaluations/scores.jsonl    {"version": 40, "model": "step_40", "time_s": 61.2, "accuracies": […]}
    checkpoints/best            a link to the best checkpoint, a directory that `arl eval` and `model.path` take
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from arl.config.recipe import Recipe
from arl.errors import RunError, leaves
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
    time_s: float  # of its records in metrics.jsonl, which a resumed run may have to write again
    accuracies: tuple[Accuracy, ...]  # one of each suite


class Scoreboard:
    """Record scores once each, and keep checkpoints/best pointing to the version with the best.

    Of equal scores that of the earlier version is the best, because it was trained less on the same problems.

    Args:
        run: directory of the run.
        version: that the run begins with; scores of later ones are removed, because their steps are trained again.
        note: is called with one line for each evaluation, and each version that is left out.
    """

    def __init__(
        self, run: Path, recipe: Recipe, version: int, recorder: Recorder, note: Callable[[str], None]
    ) -> None:
        self.run = run
        self.recipe = recipe
        self.note = note
        self.checkpoints = run / CHECKPOINTS
        self._file = run / EVALUATIONS / SCORES
        self._recorder = recorder
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
            if accuracy.suite == self.recipe.eval.decides and (self.checkpoints / scores.model).exists()
        }
        return ranked[max(ranked)] if ranked else None

    def measured(self, version: int) -> bool:
        """Return whether this version has scores."""
        return version in self._scores

    def wants(self, version: int, is_last: bool) -> bool:
        """Return whether a version is to be measured. The last one is, unless the run itself measures all of it."""
        evaluation = self.recipe.eval
        is_due = not evaluation.only_held_out if is_last else version % evaluation.every == 0
        return is_due and not self.measured(version)

    def leave_out(self, version: int, error: Exception) -> None:
        """Note that a version could not be measured; whatever the error is, an evaluation does not end a run."""
        cause = next(leaves(error))
        why = str(cause) if isinstance(cause, RunError) else f"{type(cause).__name__}: {cause}"
        self.note(f"version {version} is not evaluated: {why}")

    def add(self, model: Path, accuracies: Sequence[Accuracy]) -> None:
        """Record the scores of a version, whose weights are in directory `model`.

        Raises:
            DiskError: a file cannot be written.
        """
        version = accuracies[0].version
        self._scores[version] = Scores(version, model.name, self._recorder.seconds, tuple(accuracies))
        self._write()
        is_best = self.best is self._scores[version]
        text = ", ".join(f"{accuracy.suite} {accuracy.mean_reward:.3f}" for accuracy in accuracies)
        self.note(f"evaluation of version {version}: {text}{' (the best so far)' if is_best else ''}")

    def _write(self) -> None:
        """Write the file; then record what is not recorded, now or by a run that is resumed; then choose the best."""
        with writing(self._file):
            self._file.parent.mkdir(exist_ok=True)
            self.checkpoints.mkdir(exist_ok=True)
            replace_file(self._file, msgspec.json.Encoder().encode_lines(self._scores.values()))
        for scores in self._scores.values():
            for accuracy in scores.accuracies:
                self._recorder.evaluated(accuracy, scores.time_s)
        link = self.checkpoints / BEST
        best = self.best
        if best is None:
            link.unlink(missing_ok=True)
            return
        new = link.with_name(f".{BEST}.new")
        with writing(link):
            remove_any(new)
            new.symlink_to(best.model)
            new.rename(link)
