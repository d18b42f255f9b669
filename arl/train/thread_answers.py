"""Give each answer of rank 0's threads to whoever asked for it, and refuse what nobody asked for. Torch-free."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import Struct

from arl.train.channel import Joined, Sent
from arl.train.waits import Waits, set_if_waiting


class _Question(NamedTuple):
    kinds: tuple[type[Struct], ...]  # of its answer
    answered: asyncio.Future[Any]


class ThreadAnswers:
    """Hold the questions that threads of rank 0 have not answered, by role. A thread answers them in their order.

        with answers.next("claims", Claimed) as claimed:
            …                       # send the question
            await claimed           # set by answers.add("claims", Claimed(5))

    A question may be given up, at its deadline or by a cancellation. Its answer is still due, and is then dropped.
    """

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._unanswered: dict[str, list[_Question]] = {}
        self._opened: set[str] = set()  # groups, whose threads may report at any time that their group has broken

    def __len__(self) -> int:
        """Return of how many threads something is kept."""
        return len(self._unanswered.keys() | self._opened)

    def expects(self, role: str) -> bool:
        """Return whether anything may come from the thread `role`."""
        return role in self._unanswered or role in self._opened

    @contextlib.contextmanager
    def next(self, role: str, *kinds: type[Struct]) -> Iterator[asyncio.Future[Any]]:
        """Yield the future of the next answer of the thread `role`, which is one of `kinds`.

        A ConnectionError in the block says that the thread has not got the question, so that no answer is due.
        """
        question = _Question(kinds, self._waits.new())
        self._unanswered.setdefault(role, []).append(question)
        try:
            yield question.answered
        except ConnectionError:
            self._forget(role, question)
            raise
        finally:
            question.answered.cancel()

    def add(self, role: str, answer: Struct) -> None:
        """Give the answer to whoever waits for it.

        Raises:
            TypeError: nobody has asked for it, or for one of another kind.
        """
        name = type(answer).__name__
        if role not in self._unanswered:
            if role in self._opened and isinstance(answer, Sent) and answer.error:
                return  # its group has broken; the next question finds that the thread has left
            raise TypeError(f"{name}, for which nobody has asked")
        question = self._unanswered[role][0]
        if not isinstance(answer, question.kinds):
            due = " or ".join(kind.__name__ for kind in question.kinds)
            raise TypeError(f"{name} instead of {due}")
        self._forget(role, question)
        if isinstance(answer, Joined):
            self._opened.add(role)
        set_if_waiting(question.answered, answer)

    def left(self, role: str) -> None:
        """Forget a thread that has ended; ConnectionError ends the wait for an answer that it has not given."""
        self._opened.discard(role)
        for question in self._unanswered.pop(role, []):
            if not question.answered.done():
                question.answered.set_exception(ConnectionError(f"{role} of rank 0 has ended without an answer"))

    def _forget(self, role: str, question: _Question) -> None:
        """Remove a question, and its role with the last one."""
        left = [other for other in self._unanswered.get(role, []) if other is not question]
        if left:
            self._unanswered[role] = left
        else:
            self._unanswered.pop(role, None)
