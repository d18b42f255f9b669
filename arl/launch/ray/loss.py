"""Say in one phrase what has happened to an actor, from the error that Ray raises for it."""

from ray.exceptions import RayError, RayTaskError

GUESSES = " Some common causes include"  # begins what Ray adds to a cause that it does not know


def describe_loss(error: RayError | None, node: str, is_node_lost: bool) -> str:
    """Say how a process has ended whose actor is dead.

    Args:
        error: that Ray has raised. None: none; the worker of the actor does not answer, and is given up.
        node: name of the node.
        is_node_lost: Ray has given up the node.
    """
    if error is None:
        silent = f"its node {node}, which Ray has given up," if is_node_lost else f"its Ray worker on {node}"
        return f"was given up, because {silent} does not answer"
    if is_node_lost:
        return f"was lost with its node {node} (Ray: {reason(error)})"
    return f"was lost with its Ray worker on {node} (Ray: {reason(error)})"


def reason(error: RayError) -> str:
    """Return the cause, which stands last in a long message of Ray's."""
    if isinstance(error, RayTaskError):
        return f"{type(error.cause).__name__}: {error.cause}"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = lines[-1] if lines else type(error).__name__
    return last.partition(GUESSES)[0]
