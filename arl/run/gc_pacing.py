"""Slow down Python's garbage collector in a process that holds thousands of open episodes."""

import contextlib
import gc
from collections.abc import Iterator

CONTAINERS = 100_000  # of a few hundred bytes: garbage in cycles holds some 20 MB at most before it is collected


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect after CONTAINERS new containers instead of Python's 700.

    An open episode is some thirty containers (task, coroutines, iterators). They live as long as its answer takes, and
    none is in a cycle. At Python's pace the collector visits all of them again and again. With thousands of open
    episodes that takes almost as much time as the rest of the controller (docs/benchmarks/controller.json).
    """
    before = gc.get_threshold()
    gc.set_threshold(CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
