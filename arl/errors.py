"""One exception tree. A message says the value, the rule, the place and the remedy.

ArlError
├── Rejected          an env or filter that does not want this group (never ends a run by itself)
├── Lost              a group that ends untrained, with this fate (never ends a run)
├── InputError        what the user gave is wrong; nothing has started (exit code 2)
│   ├── RecipeError   a recipe field
│   └── DataError     a problem set, a prompt, a checkpoint
└── RunError          a run that had started cannot go on (exit code 3)
    ├── DeadlineError a wait ran out of time; carries who waits on whom
    ├── ProcessDied   an engine, trainer rank or reward worker ended by itself
    ├── EngineError   an engine refused or garbled a request
    │   └── EngineLost    or its connection broke: what it had said stands, another engine can go on
    ├── TrainerError  a trainer rank raised
    └── RewardError   a reward raised, hung or returned no finite number
"""

from collections.abc import Iterator


class ArlError(Exception):
    """Root of everything arl raises on purpose."""

    exit_code = 1


class Rejected(ArlError):
    pass


class Lost(ArlError):
    """Its message is the fate under which the group is counted."""


class InputError(ArlError):
    exit_code = 2


class RecipeError(InputError):
    pass


class DataError(InputError):
    pass


class RunError(ArlError):
    exit_code = 3


class DeadlineError(RunError):
    pass


class ProcessDied(RunError):
    pass


class EngineError(RunError):
    pass


class EngineLost(EngineError):
    pass


class TrainerError(RunError):
    pass


class RewardError(RunError):
    pass


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions inside a (nested) exception group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from leaves(inner)
    else:
        yield error
