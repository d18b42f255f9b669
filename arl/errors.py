"""Define one exception tree. Every message says the value, the rule, the place and the remedy.

ArlError
├── Rejected          an env does not want this group: it is not trained, and the run goes on
├── Lost              a group ends untrained, with the message as its fate; the run goes on
├── RunStopped        the user has stopped a run, which can be resumed (exit code 130)
├── InputError        what the user gave is wrong, and nothing has started (exit code 2)
│   ├── RecipeError   a recipe field is wrong
│   └── DataError     a problem set, a prompt or a checkpoint is wrong
└── RunError          a run that had started cannot go on (exit code 3)
    ├── DeadlineError a wait ran out of time; the message lists who waits for what
    ├── ProcessDied   an engine, trainer rank or reward worker exited by itself
    ├── EngineError   an engine refused a request, or answered it wrongly
    │   └── EngineLost    its connection broke: its tokens so far are kept, and another engine continues
    ├── TrainerError  a trainer rank raised
    ├── DiskError     a file of the run cannot be written; says what is free, and what helps
    ├── RewardError   a response has no grade, and reward.on_error is drop; fails its group, not the run
    ├── UserCodeError an env or a filter raised or hung; fails its group, not the run
    ├── SandboxError  the sandbox itself failed, and not the program in it
    └── GradingError  no more responses can be graded
"""

import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path

OTHERS = tuple(f"{path}/" for path in (Path(__file__).parent, *map(sysconfig.get_path, ("stdlib", "purelib"))))
MAX_FRAMES = 8  # of a traceback, the innermost
MAX_LINES = 20
LINE_BEGIN = 700  # characters of a long line that are shown
LINE_END = 300
NOT_FOR_TERMINALS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class ArlError(Exception):
    """Mark what arl raises on purpose; every other class here is one of its kinds."""

    exit_code = 1


class Rejected(ArlError):
    """Report that an env does not want this group. Envs raise it, with the reason."""


class Lost(ArlError):
    """Report that a group ends untrained. The message is the fate under which the group is counted."""


class RunStopped(ArlError):
    """Report that the user has stopped a run, and how to resume it."""

    exit_code = 130


class InputError(ArlError):
    """Report that what the user gave is wrong, before anything has started. Its message fits a screen."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(short_message(message))


class RecipeError(InputError, ValueError):
    """Report that a recipe field is wrong. As a ValueError of a section's check it gets its line from the file."""


class DataError(InputError):
    """Report that a problem set, a prompt or a checkpoint is wrong."""


class RunError(ArlError):
    """Report that a run that had started cannot go on."""

    exit_code = 3


class DeadlineError(RunError):
    """Report that a wait ran out of time."""


class ProcessDied(RunError):
    """Report that a process of the run exited by itself."""


class EngineError(RunError):
    """Report that an engine refused a request, or answered it wrongly."""


class EngineLost(EngineError):
    """Report that the connection to an engine broke. Another engine can continue its requests."""


class TrainerError(RunError):
    """Report that a trainer rank raised."""


class DiskError(RunError):
    """Report that a file of the run cannot be written: which, why, what is free, and what helps."""


class SandboxError(RunError):
    """Report that a sandbox cannot be opened, or failed; never that a program in it did."""


class RewardError(RunError):
    """Report that a response has no grade: its reward raised, hung, died or returned no finite number."""


class UserCodeError(RunError):
    """Report that code which a recipe names raised or hung: who, what, where. Its note is the traceback.

    Args:
        who: what the code is, as in "env my_env:ask".
        what: it did; empty: it raised `cause`.
        cause: whose traceback leads to the line.
    """

    def __init__(self, who: str, cause: BaseException, what: str = "") -> None:
        frames = traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if not frame.filename.startswith(OTHERS)]
        innermost = (own or frames)[-1]
        place = f"{innermost.filename}:{innermost.lineno}, in {innermost.name}"
        super().__init__(f"{who}: {what or f'{type(cause).__name__}: {cause}'} ({place})")
        self.kind = f"{type(cause).__name__} at {place}"
        self.trace = printable("".join(traceback.format_exception(cause, limit=-MAX_FRAMES)))
        self.add_note(self.trace)


class GradingError(RunError):
    """Report that no more responses can be graded: reward.on_error is stop, or a function grades nothing."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside a (nested) exception group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def ends_the_run(cause: BaseException) -> bool:
    """Return whether a run cannot go on, for instance without an engine. A user's code fails its group alone."""
    return isinstance(cause, RunError) and not isinstance(cause, RewardError | UserCodeError)


def short_message(message: str) -> str:
    """Shorten a message so that it fits a screen, and escape the characters that terminals obey or cannot show."""
    lines = message.split("\n")
    shown = [_short_line(line) for line in lines[:MAX_LINES]]
    if len(lines) > MAX_LINES:
        shown.append(f"… and {len(lines) - MAX_LINES} more lines")
    return printable("\n".join(shown))


def printable(text: str) -> str:
    """Escape the characters that terminals obey or cannot show. Lines stay lines."""
    return NOT_FOR_TERMINALS.sub(lambda found: ascii(found[0])[1:-1], text)


def _short_line(line: str) -> str:
    left_out = len(line) - LINE_BEGIN - LINE_END
    if left_out <= 0:
        return line
    return f"{line[:LINE_BEGIN]} … {left_out} characters … {line[-LINE_END:]}"
