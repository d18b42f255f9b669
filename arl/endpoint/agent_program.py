"""Run an agent that is a program of its own: the command of recipe field rollout.agent, once for each episode.

    problem as JSON ─► stdin ─► python my_agent.py ─► requests to OPENAI_BASE_URL
                                       └─► exit code 0; the last line of stdout may be {"reward": 0.5}

The program is the user's own: it runs in the directory of the run's command, with its rights. When it has exited,
whatever it has started is killed.
"""

import os
import shlex
import signal
import tempfile
from typing import IO

import msgspec
from msgspec import Struct

from arl.endpoint.episode_endpoint import open_endpoint
from arl.endpoint.openai_requests import MODEL
from arl.launch.network import LOOPBACK
from arl.launch.spawn import describe_exit, signal_all, spawn
from arl.rollout.env import Session
from arl.types import Problem

TAIL = 2000  # bytes of an output that an error shows, and in which the last line is looked for


class AgentError(Exception):
    """Report that the program failed. As any exception of an env, it fails the group."""


class AgentResult(Struct, forbid_unknown_fields=True):
    """Hold what the last line of a program's output may say."""

    reward: float


async def run_agent(problem: Problem, session: Session) -> float | None:
    """Drive an episode by the program of recipe field `rollout.agent`, and return the reward that it printed, if any.

    A program that fails because nothing more fits into the episode has only ended it.

    Raises:
        AgentError: it failed otherwise, or its last line is JSON of another kind.
    """
    assert session.rollout.agent is not None
    command = session.rollout.agent
    async with open_endpoint(session) as url:
        # Files, because a pipe stays open as long as anything that the program has started holds it.
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
            given.write(msgspec.json.encode(problem))
            given.seek(0)
            process = await spawn(
                shlex.split(command),
                _variables(url),
                output=said.fileno(),
                errors=errors.fileno(),
                stdin=given.fileno(),
            )
            try:
                code = await process.wait()
            finally:
                signal_all(process, signal.SIGKILL)
                await process.wait()
            if code and not session.is_over:
                raise AgentError(f"rollout.agent {command!r} {describe_exit(code)}\n{_tail(errors)}")
            return _reward(_tail(said))


def _variables(url: str) -> dict[str, str]:
    """Return the variables by which every OpenAI client finds the endpoint."""
    direct = ",".join(filter(None, [os.environ.get("no_proxy", os.environ.get("NO_PROXY")), LOOPBACK]))
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "unused",
        "OPENAI_MODEL": MODEL,
        "NO_PROXY": direct,
        "no_proxy": direct,
    }


def _tail(file: IO[bytes]) -> str:
    """Return the end of an output."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(size - TAIL, 0))
    return file.read().decode(errors="replace").strip()


def _reward(output: str) -> float | None:
    """Return the reward in the last line, if that is JSON."""
    last = output.rpartition("\n")[2]
    if not last.startswith("{"):
        return None
    try:
        return msgspec.json.decode(last, type=AgentResult).reward
    except msgspec.DecodeError as error:
        raise AgentError(f'its last line {last!r}: {error}; print {{"reward": 0.5}}, or no JSON') from error
