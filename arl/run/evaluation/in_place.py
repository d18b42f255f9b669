"""Evaluate versions between two steps, in a world that computes in one process.

    step ─► stepped: the weights are saved ─► another event loop, in virtual time of its own ─► Scoreboard ─► next event

The run's loop stands still meanwhile. Its clock, its tasks and its weights do not see the evaluation, so a run with
eval.every equals the run without it to the last bit, but for the records of the evaluations.
"""

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import leaves
from arl.files import remove_any, writing
from arl.run.evaluation.during import Evaluations, is_measured
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.types import Accuracy

PREFIX = "model_"  # of a directory below checkpoints/ that holds weights alone, from which no run is resumed
Measure = Callable[[Path, int], Coroutine[Any, Any, Sequence[Accuracy]]]


class InPlaceEvaluations(Evaluations):
    """Evaluate each due version before the next event of the run.

    No checkpoint is wanted for it, because that would change the schedule. Held-out problems of the last version are
    evaluated by the run itself, after training.

    Args:
        run: directory of the run.
        save: writes the trainer's present weights to a directory, for `from_pretrained`.
        measure: returns the accuracy of a directory's weights, which are this version.
        note: is called with one line about a version that is not measured.
    """

    def __init__(
        self,
        run: Path,
        recipe: Recipe,
        save: Callable[[Path], None],
        measure: Measure,
        board: Scoreboard,
        note: Callable[[str], None],
    ) -> None:
        self._checkpoints = run / CHECKPOINTS
        self._recipe = recipe
        self._save = save
        self._measure = measure
        self._board = board
        self._note = note
        self._remove_others()

    def stepped(self, version: int, is_last: bool) -> None:
        """See Evaluations."""
        if self._board.measured(version) or not is_measured(self._recipe, version, is_last):
            return
        model = self._checkpoints / f"{PREFIX}{version}"
        with writing(model):
            self._checkpoints.mkdir(exist_ok=True)
            self._save(model)
        try:
            accuracies = in_own_loop(lambda: self._measure(model, version))
        except Exception as error:  # whatever it is, an evaluation does not end a run
            cause = next(leaves(error))
            self._note(f"version {version} is not evaluated: {type(cause).__name__}: {cause}")
        else:
            self._board.add(model, accuracies)
        self._remove_others()

    def finish(self) -> None:
        """See Evaluations. Removes the weights that were the best before the last evaluation."""
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove every directory of weights but the best one, and what a kill left half written."""
        best = self._board.best
        for model in [*sorted(self._checkpoints.glob(f"{PREFIX}*")), *sorted(self._checkpoints.glob(f".{PREFIX}*"))]:
            if best is None or model.name != best.model:
                remove_any(model)


def in_own_loop(main: Callable[[], Coroutine[Any, Any, Sequence[Accuracy]]]) -> Sequence[Accuracy]:
    """Run `main` to its end on a virtual clock of its own, while the caller's event loop stands still.

    A thread, because a thread has at most one running loop; only one of the two computes at any time.
    """
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="evaluation") as thread:
        return thread.submit(clock.run, main, virtual=True).result()
