"""Run a trainer rank: `python -m arl.train.rank`, started by the launcher or torchrun.

    environment ─► Hello ─► Init ─► Learner ─► for ever: Step ─► Stepped (─► Published, by the publisher's thread)
                                                         Copy, Write ─► answered, the latter by the saver's thread

Environment: RANK and WORLD_SIZE as torchrun sets them, ARL_TRAINER_ADDRESS, ARL_RUN_KEY. Where the ranks meet, rank 0
reports in its Hello, and Init tells all of them; torchrun's MASTER_ADDR and MASTER_PORT win.
Standard output goes to the rank's log: one line for each request that it takes and each answer that it gives.
"""

import os
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

from arl.launch.child import exit_immediately
from arl.launch.devices import stay_near_gpu
from arl.launch.network import held_rendezvous
from arl.train import channel
from arl.train.channel import MAIN, Failed, RankRequest
from arl.train.link import Link
from arl.train.micro_batch import join_ahead, pack_sizes
from arl.types import WeightUpdate


class Rank:
    """Serve the controller's requests after Init, in the main thread."""

    def __init__(self, link: Link, init: channel.Init) -> None:
        from arl.train.learner import Learner
        from arl.train.publication import Publication

        train, objective, advantage = init.sections()
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
            advantage=advantage,
            oldest_age=init.oldest_age,
            seed=init.seed,
            publishes_adapters=init.publishes_adapters,
        )
        self._joiner = ThreadPoolExecutor(1, "joiner")
        self._saver = ThreadPoolExecutor(1, "saver")
        self._publication = Publication(self.learner, init, link, self._announce)

    def serve(self, first: RankRequest) -> None:
        """Answer `first`, the request with Init. Then

        Consumes the controller's requests; waits for the next; unblocked by it, or by the controller's death.
        """
        self._give_back()  # what loading and tuning took
        self._log(f"ready; {self.learner.policy.attention}")
        self._link.answer(first, channel.Ready(self.learner.tensors()))
        while True:
            request = self._link.receive()
            body = request.body
            self._log(f"{type(body).__name__} received")
            if isinstance(body, channel.Step):
                self._link.answer(request, self._step(body))
                self._log("Stepped sent")
            elif isinstance(body, channel.Copy):
                # The controller asks for no copy while a rank still writes the one before.
                self._state = self.learner.training_state()
                self._give_back()
                self._link.answer(request)
            elif isinstance(body, channel.Write):
                self._saver.submit(self._write, request, Path(body.path), self.learner.version)
            else:  # Stop
                break
        self._publication.close(self._init.shutdown_seconds)
        self._link.answer(request)

    def _log(self, what: str) -> None:
        clock = time.strftime("%H:%M:%S")
        who = f"trainer rank {self._link.rank} (pid {os.getpid()})"
        print(f"{clock} {who} at version {self.learner.version}: {what}", flush=True)

    def _step(self, message: channel.Step) -> channel.Stepped:
        first = self.learner.first_minibatch(len(message.shard.minibatches))
        shard = join_ahead(message.shard, self._joiner, first)
        began = time.perf_counter()
        metrics = self.learner.step(shard)
        start = time.perf_counter()
        self._publication.publish()
        self._give_back()
        metrics["sync/blocking_seconds"] = time.perf_counter() - start
        return channel.Stepped(
            version=self.learner.version,
            metrics=metrics,
            sizes=pack_sizes(shard, self.learner.flops),
            busy_seconds=time.perf_counter() - began,
            logprobs=self.learner.log.logprobs(),
        )

    def _give_back(self) -> None:
        """Free a GPU's memory for the engines that use it between steps, all but weights and moments."""
        import torch  # a second, which the first message to the controller does not wait for

        if self._init.takes_turns:
            torch.cuda.empty_cache()

    def _write(self, request: RankRequest, path: Path, version: int) -> None:
        """Write what was copied at `version`, in the saver's thread."""
        try:
            self.learner.write(self._state, path)
        except Exception as error:
            self._link.tell(Failed.of("saver", version, error))
        else:
            self._link.answer(request)

    def _announce(self, outcome: WeightUpdate | Exception) -> None:
        """Report the outcome of a publication, in the publisher's thread."""
        if isinstance(outcome, Exception):
            self._link.tell(Failed.of("publisher", self.learner.version, outcome))
        else:
            self._link.tell(channel.Published(outcome))


def main() -> NoReturn:
    """Serve until Stop; exit with 1 after a traceback, which the controller and the log get."""
    stay_near_gpu()
    with held_rendezvous() as meeting:
        link = Link(meeting)
        code = _serve(link)
        link.close()
    exit_immediately(code)


def _serve(link: Link) -> int:
    """Serve the controller, and return the exit code."""
    rank = None
    try:
        request = link.receive()  # when every rank has said hello
        init = request.body
        assert isinstance(init, channel.Init)
        if init.master_port:
            os.environ["MASTER_ADDR"] = init.master_address
            os.environ["MASTER_PORT"] = str(init.master_port)
        rank = Rank(link, init)
        rank.serve(request)
    except Exception as error:
        failure = Failed.of(MAIN, -1 if rank is None else rank.learner.version, error)
        traceback.print_exception(error)
        link.tell(failure)
        return 1
    return 0


if __name__ == "__main__":
    main()
