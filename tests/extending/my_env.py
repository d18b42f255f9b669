"""A user's env: the policy speaks, a tool answers, the policy speaks again.

rollout: {env: tests.extending.my_env:ask_twice}
"""

from arl.rollout.env import Session
from arl.types import Problem

TOOL = "=="


async def ask_twice(problem: Problem, session: Session) -> None:
    """Let the policy take two turns of at most four tokens, with the tool's text in between."""
    await session.generate(limit=4)
    if session.is_over:
        return
    session.extend(TOOL)
    if not session.is_over:
        await session.generate(limit=4)


def not_async(problem: Problem, session: Session) -> None:
    pass
