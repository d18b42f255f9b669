"""Refuse pools of processes and threads that the import of a reward function has made.

A lane is a copy of its worker. So all lanes would use the pipes of one pool, and take each other's results.
"""

import gc
import sys

POOLS = {"concurrent.futures.process": "ProcessPoolExecutor", "multiprocessing.pool": "Pool"}


def refuse_shared_pools() -> None:
    """End this process if there is a pool.

    Raises:
        SystemExit: there is one. The message says what to do.
    """
    kinds = [getattr(sys.modules[module], name) for module, name in POOLS.items() if module in sys.modules]
    found = {type(each).__name__ for each in gc.get_objects() if isinstance(each, tuple(kinds))}
    if found:
        raise SystemExit(
            f"a reward function has made a {' and a '.join(sorted(found))} while it was imported or prepared: all "
            "lanes would share its pipes, and get each other's results; make it in the first call, as by "
            "functools.cache"
        )
