"""A trainer rank: `python -m arl.train.rank`, started by the launcher or torchrun.

    environment ─► Hello ─► Init ─► Learner ─► for ever: Step ─► Stepped (─► Published, from the publisher's thread)
                                                         Save ─► Copied  (─► Saved, from the saver's thread)

Environment: RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT as torchrun sets them, ARL_TRAINER_ADDRESS and ARL_RUN_KEY;
with ARL_PARENT_PID the rank dies with that process.
"""

import os
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import zmq

from arl.launch.child import die_with_parent, leave
from arl.train.channel import (
    Copied,
    Failed,
    Init,
    Ping,
    Published,
    Ready,
    Save,
    Saved,
    Step,
    Stepped,
    Stop,
    Stopped,
)
from arl.train.link import LINGER_SECONDS, Link
from arl.types import WeightUpdate

if TYPE_CHECKING:
    from arl.sync.publication_target import PublicationTarget
    from arl.train.sharded_weights import TrainingState

HELLO_SECONDS = 120.0  # for the controller's first word


class Rank:
    """One trainer rank after Init."""

    def __init__(self, link: Link, init: Init) -> None:
        from arl.models.load import DTYPES
        from arl.sync.publisher import Publisher
        from arl.train.learner import Learner

        train, objective = init.sections()
        self._link, self._init = link, init
        self.learner = Learner(
            init.model_path,
            train,
            objective,
            init.temperature,
            init.version,
            init.resumed,
            init.collective_seconds,
            Path(init.evidence),
        )
        self._saver = ThreadPoolExecutor(1, "saver")
        self._announce_save = _Announcer("saver", init.version)
        self._publisher = None
        if link.rank == 0:
            self._publisher = Publisher(
                self._target(),
                init.kept_versions,
                _Announcer("publisher", init.version),
                init.every_version,
                None if init.checked_as is None else DTYPES[init.checked_as],
            )

    def _target(self) -> "PublicationTarget":
        from arl.sync.broadcast_target import BroadcastTarget
        from arl.sync.broadcast_threads import start_broadcast_threads
        from arl.sync.file_target import FileTarget
        from arl.sync.ipc_target import IpcTarget
        from arl.train.sender_link import SenderLink

        init = self._init
        if init.transport == "ipc":
            return IpcTarget(Path(init.publish_directory), init.bucket_bytes)
        if init.transport == "broadcast":
            target = BroadcastTarget(init.bucket_bytes)
            start_broadcast_threads(target, SenderLink, os.environ["MASTER_ADDR"], init.broadcast_seconds)
            return target
        assert init.transport == "file", f"a process cannot publish by {init.transport}"
        return FileTarget(Path(init.publish_directory), self.learner.config_json())

    def serve(self) -> None:
        """Consumes the controller's messages; waits for the next; unblocked by it, or by the controller's death."""
        while True:
            message = self._link.receive()
            if isinstance(message, Step):
                self._link.send(self._step(message))
            elif isinstance(message, Save):
                state = self.learner.sharded.training_state()
                if self._link.rank == 0:
                    self._saver.submit(self._write, state, Path(message.path), self.learner.version)
                self._link.send(Copied())
            elif isinstance(message, Stop):
                break
            elif not isinstance(message, Ping):
                raise ValueError(f"unexpected {type(message).__name__}")
        self._saver.shutdown()  # the controller has waited for what it saved
        if self._publisher is not None:
            self._publisher.close(LINGER_SECONDS)
        self._link.send(Stopped())

    def _write(self, state: "TrainingState", path: Path, version: int) -> None:
        try:
            self.learner.sharded.write(state, path, tokenizer_path=self._init.model_path)
            self._announce_save(Saved(version))
        except Exception as error:
            self._announce_save(error)

    def _step(self, message: Step) -> Stepped:
        metrics = self.learner.step(message.shard)
        start = time.perf_counter()
        state = self.learner.snapshot()
        if self._init.in_turns:
            self.learner.sharded.give_back()
        if self._publisher is not None:
            self._publisher.publish(self.learner.version, state)
        metrics["sync/blocking_seconds"] = time.perf_counter() - start
        return Stepped(self.learner.version, metrics)


class _Announcer:
    """Sends from a thread, over a socket made there: sockets may not be shared."""

    def __init__(self, role: str, version: int) -> None:
        self._link: Link | None = None
        self._role, self._version = role, version

    def __call__(self, outcome: WeightUpdate | Saved | Exception) -> None:
        if self._link is None:
            self._link = Link(self._role)
        if isinstance(outcome, Exception):
            self._link.send(Failed(self._version, "".join(traceback.format_exception(outcome))))
        elif isinstance(outcome, WeightUpdate):
            self._version = outcome.version
            self._link.send(Published(outcome))
        else:
            self._version = outcome.version
            self._link.send(outcome)


def main() -> NoReturn:
    die_with_parent()
    link, rank = Link("trainer"), None
    try:
        init = link.receive(HELLO_SECONDS)
        if not isinstance(init, Init):
            raise PermissionError(f"the controller answered {init}")
        rank = Rank(link, init)
        link.send(Ready(rank.learner.tensors()))
        rank.serve()
    except Exception:
        trace = traceback.format_exc()
        print(trace, file=sys.stderr)
        link.send(Failed(-1 if rank is None else rank.learner.version, trace))
        zmq.Context.instance().destroy(linger=int(LINGER_SECONDS * 1000))
        leave(1)
    zmq.Context.instance().destroy(linger=int(LINGER_SECONDS * 1000))
    leave(0)


if __name__ == "__main__":
    main()
