"""Ask the controller of a run, from any machine that sees the run's directory.

state.json, once it has changed ─► the controller lives ─► requests/ID.json ─► answers/ID.json
"""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

import arl
from arl.clock import now
from arl.errors import InputError, RunError
from arl.metrics.run_status import read_status
from arl.run.control.control_folder import ControlFolder, new_name, read_private, write_private
from arl.run.control.control_messages import ControlAnswer, LiveRun, Request

LOOK_SECONDS = 0.2
FRESH_SECONDS = 15.0  # in which a controller that lives has written its state again
TAKEN_SECONDS = 30.0  # in which it has taken a request
GONE_SECONDS = 60.0  # without a new state, until a controller counts as gone


class RunControl:
    """Ask the controller of the run in directory `run`."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self._folder = ControlFolder(run)

    async def state(self) -> LiveRun:
        """Wait for the next state that the controller writes, a second at most, and return it.

        Raises:
            InputError: the run does not run, or its controller does not answer, or is of another version.
        """
        first = self.read_state()
        if first is None:
            raise InputError(_why_no_state(self.run))
        if first.arl != arl.__version__:
            raise InputError(f"{self.run}: runs under arl {first.arl}, and this is {arl.__version__}; install the same")

        def is_new() -> bool:
            state = self.read_state()
            return state is not None and state.beat != first.beat

        if not await _until(is_new, FRESH_SECONDS):
            raise InputError(
                f"{self.run}: its controller has not written {self._folder.state} for {FRESH_SECONDS:g} s; it has been "
                "killed, or hangs"
            )
        return self.read_state() or first

    def read_state(self) -> LiveRun | None:
        """Read what the controller has written last; None: there is no such run any more.

        Raises:
            InputError: it is no state of a controller.
        """
        try:
            data = read_private(self._folder.state)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError) as error:
            raise InputError(f"{self._folder.state}: {error}; ask as the user who has started the run") from error
        try:
            return msgspec.json.decode(data, type=LiveRun)
        except msgspec.DecodeError as error:
            raise InputError(f"{self._folder.state}: {error}; is it of another version of arl?") from error

    async def ask(self, request: Request, seconds: float) -> str:
        """Ask, and wait for the answer; return what was done.

        Args:
            request: what to do.
            seconds: that it may take.

        Raises:
            InputError: the controller refuses it.
            RunError: it failed, or there is no answer in time.
        """
        name = new_name()
        asked = self._folder.requests / name
        answered = self._folder.answers / name
        try:
            write_private(asked, msgspec.json.encode(request))
            if not await _until(lambda: not os.path.exists(asked), TAKEN_SECONDS):
                raise RunError(f"{self.run}: its controller has not looked for requests for {TAKEN_SECONDS:g} s")
            await self._until_answered(answered, seconds)
            answer: ControlAnswer = msgspec.json.decode(read_private(answered), type=ControlAnswer)
        except FileNotFoundError as error:  # the controller has removed the directory of requests
            raise RunError(f"{self.run}: the run has ended meanwhile") from error
        except (OSError, ValueError, msgspec.DecodeError) as error:
            raise RunError(f"{self.run}: its controller cannot be asked ({error})") from error
        finally:
            for file in (asked, answered):
                with contextlib.suppress(OSError):
                    file.unlink()
        if answer.error:
            raise (InputError if answer.is_input else RunError)(answer.error)
        return answer.done

    async def _until_answered(self, answered: Path, seconds: float) -> None:
        """Wait for an answer as long as the controller lives.

        Raises:
            RunError: it is gone, or the time has passed.
        """
        watch = ControllerWatch(self)

        def is_answered() -> bool:
            if os.path.exists(answered):
                return True
            if watch.is_gone():
                raise RunError(f"{self.run}: its controller is gone")
            return False

        if not await _until(is_answered, seconds):
            raise RunError(f"{self.run}: not done after {seconds:g} s; `arl engines list` shows what becomes of it")


class ControllerWatch:
    """Find out that a controller is gone: it has removed its folder, or has written no state for a minute."""

    def __init__(self, control: RunControl) -> None:
        self._control = control
        self._beat = -1
        self._since = now()
        self.state: LiveRun | None = None  # the newest one

    def is_gone(self) -> bool:
        """Return whether the controller is gone."""
        state = self._control.read_state()
        if state is None:
            return True
        self.state = state
        if state.beat != self._beat:
            self._beat = state.beat
            self._since = now()
        return now() - self._since > GONE_SECONDS


async def _until(is_true: Callable[[], bool], seconds: float) -> bool:
    """Wait until a file is there, or is gone. Nothing announces that across hosts, so it is looked for."""
    end = now() + seconds
    while not is_true():
        if now() > end:
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


def _why_no_state(run: Path) -> str:
    """Say why a directory holds no state of a controller.

    Raises:
        InputError: it is no run, or one whose time is virtual.
    """
    status = read_status(run)
    if status.end:
        return f"{run}: has ended: {status.end}"
    return (
        f"{run}: takes no commands now ({status.stage}); it does while it trains, in {ControlFolder(run).state.parent}"
    )
