"""Keep a record of the episodes that could not be graded: a line of the log for each, a line on the console per kind.

ungraded ─► logs/reward.log, every one
         └► console: the first of its kind, then the counts at 10, 100, 1,000 …
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

from arl.launch.disk import writing
from arl.launch.process_log import open_log
from arl.reward.grading import Verdict
from arl.types import Problem, Response

SHOWN = 60  # characters of the answer


class UngradedLog:
    """Record episodes without a grade.

    Args:
        log: the file of the reward workers' output; made with its directory when something is to be written.
        note: shows a line on the console.
    """

    def __init__(self, log: Path, note: Callable[[str], None]) -> None:
        self._log = log
        self._note = note
        self._counts: Counter[str] = Counter()  # by kind of cause

    def add(self, function: str, problem: Problem, response: Response, verdict: Verdict) -> None:
        """Record an episode that `function` did not grade.

        Raises:
            DiskError: the log cannot be written.
        """
        line = f"no grade: problem {problem.id}: {verdict.error}; the answer begins {response.text[:SHOWN]!r}\n"
        with writing(self._log):
            self._log.parent.mkdir(parents=True, exist_ok=True)
            with open_log(self._log) as log:
                log.write(line.encode("utf-8", "backslashreplace"))
        kind = verdict.error.partition(":")[0]
        self._counts[kind] += 1
        total = self._counts.total()
        if self._counts[kind] == 1:
            self.note(
                f"{function} gave an answer to problem {problem.id} no grade: {verdict.error} "
                f"(reward.on_error; every such answer is in {self._log})"
            )
        elif total >= 10 and set(str(total)[1:]) == {"0"} and str(total)[0] == "1":
            kinds = ", ".join(f"{count:,} × {kind}" for kind, count in self._counts.most_common())
            self.note(f"{total:,} answers had no grade so far: {kinds}")

    def note(self, text: str) -> None:
        """Show a line on the console."""
        self._note(text)
