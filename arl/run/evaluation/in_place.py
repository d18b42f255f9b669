"""Evaluate versions between two steps, in a world that computes in one process.

    step ─► stepped: the weights are saved ─► another event loop, in virtual time of its own ─► Scoreboard ─► next event

The run's loop stands still meanwhile. Its clock, its tasks and its weights do not see the evaluation, so a run with
eval.every equals the run without it to the last bit, but for the records of the evaluations.
"""

import threading
from collections.abc import Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from pathlib import Path

from arl import clock
from arl.config.recipe import Recipe
from arl.errors import leaves
from arl.launch.disk import writing
from arl.launch.durable import remove_any
from arl.run.evaluation.during import is_measured
from arl.run.evaluation.scoreboard import CHECKPOINTS, Scoreboard
from arl.types import Accuracy

PREFIX = "model_"  # of a directory below checkpoints/ that holds weights alone, from which no run is resumed
Measure = Callable[[Path, int], Awaitable[Sequence[Accuracy]]]


class InPlaceEvaluations:
    """Implement Evaluations without any wait.

    Held-out problems of the last version are evaluated by the run itself, after training.

    Args:
        run: directory of the run.
        save: writes the trainer's present weights to a directory, for `from_pretrained`.
        measure: returns the accuracy of a directory's weights, which are this version.
        note: is called with one line about a version that is not measured.
    """

    waiting: Collection[int] = ()

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

    def due(self, version: int) -> bool:
        """See Evaluations. No checkpoint is wanted, because it would change the schedule."""
        return False

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

    def saved(self, version: int, is_last: bool) -> None:
        """See Evaluations. The weights were saved when the step was finished."""

    async def run(self) -> None:
        """See Evaluations."""

    def finish(self) -> None:
        """See Evaluations. Removes the weights that were the best before the last evaluation."""
        self._remove_others()

    def _remove_others(self) -> None:
        """Remove every directory of weights but the best one, and what a kill left half written."""
        best = self._board.best
        for model in [*sorted(self._checkpoints.glob(f"{PREFIX}*")), *sorted(self._checkpoints.glob(f".{PREFIX}*"))]:
            if best is None or model.name != best.model:
                remove_any(model)


def in_own_loop(main: Callable[[], Awaitable[Sequence[Accuracy]]]) -> Sequence[Accuracy]:
    """Run `main` to its end on a virtual clock of its own, while the caller's event loop stands still.

    A thread, because a thread has at most one running loop; only one of the two computes at any time.
    """
    outcome: Future[Sequence[Accuracy]] = Future()

    async def measured() -> Sequence[Accuracy]:
        return await main()

    def work() -> None:
        try:
            outcome.set_result(clock.run(measured, virtual=True))
        except BaseException as error:
            outcome.set_exception(error)

    thread = threading.Thread(target=work, name="evaluation")
    thread.start()
    thread.join()
    return outcome.result()
