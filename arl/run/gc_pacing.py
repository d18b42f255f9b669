"""Python's garbage collector in a process that is full of open episodes."""

import contextlib
import gc
from collections.abc import Iterator

CONTAINERS = 100_000  # of a few hundred bytes: what is in a cycle holds some 20 MB at most before it is collected


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect after CONTAINERS new containers instead of Python's 700.

    An open episode is some thirty containers (task, coroutines, iterators) that live as long as its answer takes, none
    of them in a cycle. At Python's pace the collector walks all that are open again and again, and with thousands of
    them it takes almost as much time as everything else the controller does (docs/benchmarks/controller.json).
    """
    before = gc.get_threshold()
    gc.set_threshold(CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
