"""Run on a node of a Slurm job, between Slurm and one process of the run, and pass on signals, deaths and exit codes.

    srun … python -I arl/launch/slurm/step_runner.py FILE COMMAND ARGUMENT …

    controller ── stdin of srun: numbers of signals, a line each ──► runner ──► the process
               ◄── stdout of srun: the pid first, all output of the process, its exit code last ───

srun alone does not do for a process what a parent does (observed with Slurm 22.05 and documented by none):

- SIGTERM to srun kills the process at once by SIGKILL. So signals travel as lines, and the process may end in peace.
- The exit code of srun is 0 if the node fails, and 137 may be an exit code or SIGKILL. So the runner reports it.

FILE has the variables of the process (see arl.launch.run_secrets), which go before those of the step: Slurm sets
CUDA_VISIBLE_DEVICES for each step.
"""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

MARK = "arl-step "  # begins the lines of the runner itself
CHILD = Path(__file__).parent.parent / "child.py"
ROOT = Path(__file__).parents[3]  # where arl is found


def obey(session: int) -> None:
    """Send the signals that the controller asks for, and SIGKILL when srun has closed standard input."""
    with open(0, "rb", buffering=0) as lines:
        for line in lines:
            send(session, int(line))
    send(session, signal.SIGKILL)


def send(session: int, number: int) -> None:
    """Send a signal to the process and to what it has started in its session, if anything is left of them."""
    try:
        os.killpg(session, number)
    except ProcessLookupError:
        return


def main(file: str, argv: list[str]) -> None:
    """Run the process of a step to its end."""
    sys.path.insert(0, str(ROOT))  # nothing is installed, as far as this interpreter knows
    from arl.launch.child import PARENT
    from arl.launch.network import HOST, interface_environment
    from arl.launch.run_secrets import take_variables

    given = take_variables(file)
    signal.signal(signal.SIGTERM, lambda *_: None)  # Slurm ends a job by SIGTERM to every process: this one comes last
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(CHILD), *argv],
        stdin=subprocess.DEVNULL,
        env={**os.environ, **interface_environment(given[HOST]), **given, PARENT: str(os.getpid())},
        start_new_session=True,
    )
    print(f"{MARK}pid {process.pid}", flush=True)
    threading.Thread(target=obey, args=(process.pid,), daemon=True).start()
    code = process.wait()
    send(process.pid, signal.SIGKILL)  # what it has started and left behind
    print(f"{MARK}ended {code}", flush=True)
    os._exit(0)  # the thread still reads


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
