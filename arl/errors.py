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
    └── RewardError   a response has no grade, and reward.on_error is drop; fails its group, not the run
"""

from collections.abc import Iterator


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
    """Report that what the user gave is wrong, before anything has started."""

    exit_code = 2


class RecipeError(InputError):
    """Report that a recipe field is wrong."""


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


class RewardError(RunError):
    """Report that a response has no grade: its reward raised, hung, died or returned no finite number."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions inside a (nested) exception group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error


def ends_the_run(cause: BaseException) -> bool:
    """Return whether a run cannot go on, for instance without an engine. A broken reward fails its group alone."""
    return isinstance(cause, RunError) and not isinstance(cause, RewardError)
