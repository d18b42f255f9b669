"""Run a trainer rank: `python -m arl.train.rank`, started by the launcher or torchrun.

    environment ─► Hello ─► Init ─► Learner ─► for ever: Step ─► Stepped (─► Published, from the publisher's thread)
                                                         Save ─► Copied  (─► Saved, from the saver's thread)

Environment: RANK and WORLD_SIZE as torchrun sets them, ARL_TRAINER_ADDRESS, ARL_RUN_KEY and ARL_STARTUP_SECONDS. Where
the ranks meet, rank 0 reports in its Hello, and Init tells all of them; torchrun's MASTER_ADDR and MASTER_PORT win.
Standard output goes to the rank's log: one line for each message that it receives and each answer that it sends.
"""

import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import zmq

from arl.launch.child import exit_immediately
from arl.launch.network import held_rendezvous
from arl.train import channel
from arl.train.link import LINGER_SECONDS, Link
from arl.train.shard import AheadJoiner, pack_sizes
from arl.types import WeightUpdate

if TYPE_CHECKING:
    from arl.train.training_copy import TrainingState


class Rank:
    """Serve the controller's messages after Init."""

    def __init__(self, link: Link, init: channel.Init) -> None:
        from arl.train.learner import Learner
        from arl.train.publication import Publication

        train, objective = init.sections()
        self._link = link
        self._init = init
        self.learner = Learner(
            init.model_path,
            train,
            objective,
            temperature=init.temperature,
            version=init.version,
            resumed=init.resumed,
            deadline_seconds=init.collective_seconds,
            evidence=Path(init.evidence),
        )
        self._joiner = AheadJoiner()
        self._saver = ThreadPoolExecutor(1, "saver")
        self._announce_save = _Announcer(channel.SAVER, init.version)
        self._publication = Publication(self.learner, init, link.rank, _Announcer(channel.PUBLISHER, init.version))

    def serve(self) -> None:
        """Consumes the controller's messages; waits for the next; unblocked by it, or by the controller's death."""
        ready = channel.Ready(self.learner.tensors())
        self._log(f"ready; {self.learner.sharded.attention}")
        self._link.send(ready)
        while True:
            message = self._link.receive()
            self._log(f"{type(message).__name__} received")
            if isinstance(message, channel.Stop):
                break
            answer = self._answer(message)
            self._link.send(answer)
            self._log(f"{type(answer).__name__} sent")
        self._joiner.close()
        self._saver.shutdown()  # the controller has waited for what it saved
        self._publication.close(self._init.shutdown_seconds)
        self._link.send(channel.Stopped())
        self._log("Stopped sent")

    def _answer(self, message: channel.ToRank) -> channel.Stepped | channel.Copied:
        if isinstance(message, channel.Step):
            return self._step(message)
        if isinstance(message, channel.Save):
            return self._save(message)
        raise ValueError(f"unexpected {type(message).__name__}")

    def _log(self, what: str) -> None:
        clock = time.strftime("%H:%M:%S")
        who = f"trainer rank {self._link.rank} (pid {os.getpid()})"
        print(f"{clock} {who} at version {self.learner.version}: {what}", flush=True)

    def _step(self, message: channel.Step) -> channel.Stepped:
        from arl.train.token_log import TokenLog

        log = TokenLog()
        first = self.learner.first_minibatch(len(message.shard.minibatches))
        shard = self._joiner.shard(message.shard, first)
        began = time.perf_counter()
        metrics = self.learner.step(shard, log)
        start = time.perf_counter()
        self._publication.publish()
        if self._init.takes_turns:
            self.learner.sharded.give_back()
        metrics["sync/blocking_seconds"] = time.perf_counter() - start
        return channel.Stepped(
            self.learner.version,
            metrics,
            sizes=pack_sizes(shard, self.learner.flops),
            busy_seconds=time.perf_counter() - began,
            logprobs=log.logprobs(),
        )

    def _save(self, message: channel.Save) -> channel.Copied:
        """Copy this rank's share. The controller asks for no copy while a rank still writes the one before."""
        sharded = self.learner.sharded
        state = sharded.training_state()
        if self._init.takes_turns:
            sharded.give_back()
        self._saver.submit(self._write, state, Path(message.path), self.learner.version)
        return channel.Copied()

    def _write(self, state: "TrainingState", path: Path, version: int) -> None:
        try:
            self.learner.sharded.write(state, path, tokenizer_path=self._init.model_path)
            self._announce_save(channel.Saved(version))
        except Exception as error:
            self._announce_save(error)


class _Announcer:
    """Send the outcomes of one thread, over a link made there: a socket may be used by one thread only."""

    def __init__(self, role: str, version: int) -> None:
        self._link: Link | None = None
        self._role = role
        self._version = version

    def __call__(self, outcome: WeightUpdate | channel.Saved | Exception) -> None:
        if self._link is None:
            self._link = Link(self._role)
        if isinstance(outcome, Exception):
            self._link.send(channel.failed(self._version, outcome))
            return
        self._version = outcome.version
        self._link.send(channel.Published(outcome) if isinstance(outcome, WeightUpdate) else outcome)


def main() -> NoReturn:
    """Serve until Stop; exit with 1 after a traceback, which the controller and the log get."""
    with held_rendezvous() as meeting:
        link = Link(channel.TRAINER, meeting=meeting)
        code = _serve(link)
        link.close()
    zmq.Context.instance().destroy(linger=int(LINGER_SECONDS * 1000))
    exit_immediately(code)


def _serve(link: Link) -> int:
    """Serve the controller, and return the exit code."""
    rank = None
    code = 0
    try:
        init = link.receive(float(os.environ[channel.STARTUP_SECONDS]))  # Init comes when every rank has said hello
        if not isinstance(init, channel.Init):
            raise PermissionError(f"the controller answered {init}")
        if init.master_port:
            os.environ["MASTER_ADDR"] = init.master_address
            os.environ["MASTER_PORT"] = str(init.master_port)
        rank = Rank(link, init)
        rank.serve()
    except Exception as error:
        failure = channel.failed(-1 if rank is None else rank.learner.version, error)
        print(failure.trace, file=sys.stderr)
        link.send(failure)
        code = 1
    return code


if __name__ == "__main__":
    main()
