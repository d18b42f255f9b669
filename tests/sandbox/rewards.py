"""Grade responses by running them."""

from arl.sandbox.base import Program
from arl.sandbox.bubblewrap import BubblewrapSandbox
from arl.sandbox.current import sandbox
from arl.types import Problem, Response


def run_it(problem: Problem, response: Response) -> dict[str, float]:
    """Say whether the program prints the answer, and in which process the server of the sandbox is."""
    result = sandbox().run(Program(code=response.text))
    opened = sandbox()
    assert isinstance(opened, BubblewrapSandbox) and opened._server is not None
    return {"correct": float(result.stdout == problem.answer), "server": float(opened._server._process.pid)}
