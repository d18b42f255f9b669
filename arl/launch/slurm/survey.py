"""Look at every node of a Slurm job before anything is started there.

Allocation ─► one step on all nodes: arl.launch.node_probe ─► its lines, by node ─► Nodes, or one InputError
"""

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from arl.config.cluster_section import Cluster
from arl.errors import InputError
from arl.launch.base import Node
from arl.launch.node_reports import open_probe
from arl.launch.slurm.allocation import Allocation, this_node

PROBE_SECONDS = 300.0  # importing torch from a busy network file system takes minutes
# Each line begins with the name of its node. A step has no PATH, because it gets no environment.
NAMED_LINES = 'export PATH=/usr/bin:/bin; "$@" 2>&1 | sed "s/^/$SLURMD_NODENAME: /"'


def survey(allocation: Allocation, cluster: Cluster, directory: Path) -> list[Node]:
    """Return the nodes of the job, that of this process first.

    Args:
        directory: of the run, which need not exist yet.

    Raises:
        InputError: a node cannot take part, or there are fewer nodes than the recipe needs.
    """
    names = allocation.starting_with(this_node(allocation))
    if len(names) < cluster.fewest_nodes:
        raise InputError(
            f"cluster.nodes {cluster.nodes}: job {allocation.job} has {len(names)} ({', '.join(names)}); ask Slurm for "
            "more nodes, or set cluster.min_nodes"
        )
    with open_probe(cluster, directory) as probe:
        path = f"PYTHONPATH={os.environ.get('PYTHONPATH', '')}"
        command = ["env", path, sys.executable, "-m", "arl.launch.node_probe", probe.spec]
        lines = _run_on_all(allocation, command)
        return probe.nodes(names, _by_node(names, lines))


def _run_on_all(allocation: Allocation, command: list[str]) -> list[str]:
    """Run a command on each node, and return the lines of its output, each behind its node's name.

    For a node that has printed nothing, the lines are srun's, which say why.
    """
    step = [*allocation.step(allocation.names), "/bin/sh", "-c", NAMED_LINES, "sh", *command]
    try:
        done = subprocess.run(
            step, capture_output=True, text=True, errors="replace", timeout=PROBE_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"launcher slurm: the nodes {', '.join(allocation.names)} have not answered within {PROBE_SECONDS:.0f} s; "
            f"try `{' '.join(allocation.step(allocation.names))} hostname`"
        ) from error
    if not done.stdout:
        raise InputError(f"launcher slurm: no step starts on {', '.join(allocation.names)}: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    answered = {line.partition(": ")[0] for line in lines}
    silent = [name for name in allocation.names if name not in answered]
    return [*lines, *(f"{name}: {line}" for name in silent for line in done.stderr.splitlines())]


def _by_node(names: Iterable[str], lines: Iterable[str]) -> dict[str, str]:
    """Return what each node has printed.

    >>> _by_node(["n1", "n2"], ["n2: hello", "n1: good", "n1: day"])
    {'n1': 'good\\nday\\n', 'n2': 'hello\\n'}
    """
    printed = dict.fromkeys(names, "")
    for line in lines:
        name, _, words = line.partition(": ")
        if name in printed:
            printed[name] += f"{words}\n"
    return printed
