"""Real rank processes behind the client, started as a run does, with its launcher."""

import asyncio
import os
import re
import signal
from pathlib import Path

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file

from arl.errors import DeadlineError, ProcessDied
from arl.launch.base import Process
from arl.launch.network import LOOPBACK
from tests.train.saved import saved_weights
from tests.train.synthetic import batch
from tests.train.workers import DEADLINES, init, launched


def listening_addresses(processes: list[Process]) -> set[str]:
    sockets = [c for p in processes for c in psutil.Process(p.pid).net_connections("inet")]
    return {c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN}


def test_two_launched_ranks_train_publish_and_save_and_one_that_hangs_or_dies_is_named(
    tiny: Path, tmp_path: Path
) -> None:
    """A frozen rank and then a killed one are named with pid, version and the ends of their logs."""

    async def scene() -> None:
        async with launched(init(tiny, tmp_path / "published"), ranks=2) as (trainer, ranks):
            assert listening_addresses(ranks) == {LOOPBACK}
            assert (await trainer.weights(4)).path == str(tiny)
            await trainer.step(batch(4, groups=8, size=4))
            update = await trainer.weights(5)
            await trainer.save(tmp_path / "saved")
            await trainer.saved()
            saved = saved_weights(tmp_path / "saved")
            published = load_file(Path(update.path) / "model.safetensors")
            assert saved.keys() == published.keys()
            assert all(np.array_equal(saved[name], published[name]) for name in saved), "publication reloads bit-equal"

            trainer._deadlines = DEADLINES.model_copy(update={"step": 1.0})
            for process in ranks:
                os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(DeadlineError) as caught:
                await trainer.step(batch(5, groups=4, size=4))
            frozen = str(caught.value)
            for rank, process in enumerate(ranks):
                assert f"trainer rank {rank} (pid {process.pid} on " in frozen
                assert re.search(rf"(?s)trainer-{rank}\.log:.*\(pid {process.pid}\) at version 5: Write", frozen)
            assert "at version 5 to answer Step; 0 of 2 ranks have answered" in frozen
            assert re.search(r"controller waits \d+\.\d s", frozen)
            killed = ranks[1].pid
            os.kill(killed, signal.SIGKILL)
            said = rf"(?s)trainer-1 \(pid {killed}\) was killed by SIGKILL.*trainer-1\.log:.*\(pid {killed}\) at ver"
            with pytest.raises(ProcessDied, match=said):
                await trainer.failure()
            for wait in (trainer.save(tmp_path / "never"), trainer.weights(6)):
                with pytest.raises(ProcessDied, match=said):
                    await wait
            os.kill(ranks[0].pid, signal.SIGKILL)  # frozen, it would not end when the launcher asks

    asyncio.run(scene())
