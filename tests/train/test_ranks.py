"""Real rank processes behind the client.

They are forks where a test is about what ranks compute. Two tests start them as a run does, with its launcher.
"""

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
from arl.train.trainer_client import TrainerClient
from arl.types import StepResult
from tests.train.saved import saved_weights
from tests.train.synthetic import batch
from tests.train.workers import DEADLINES, forked, init, launched


async def two_steps(
    trainer: TrainerClient, model: Path, directory: Path
) -> tuple[list[StepResult], dict[str, np.ndarray]]:
    """Train, publish and save; return the results and the saved weights, which are those that were published."""
    assert (await trainer.weights(4)).path == str(model)
    results = [await trainer.step(batch(version, groups=8, size=4, seed=version)) for version in (4, 5)]
    update = await trainer.weights(6)
    await trainer.save(directory / "saved")
    await trainer.saved()
    saved = saved_weights(directory / "saved")
    published = load_file(Path(update.path) / "model.safetensors")
    assert saved.keys() == published.keys()
    assert all(np.array_equal(saved[name], published[name]) for name in saved), "publication reloads bit-equal"
    return results, saved


def listening_addresses(processes: list[Process]) -> set[str]:
    sockets = [c for p in processes for c in psutil.Process(p.pid).net_connections("inet")]
    return {c.laddr.ip for c in sockets if c.status == psutil.CONN_LISTEN}


def test_two_launched_ranks_train_as_one_and_listen_on_loopback_alone(tiny: Path, tmp_path: Path) -> None:
    async def alone() -> tuple[list[StepResult], dict[str, np.ndarray]]:
        async with forked(init(tiny, tmp_path / "one" / "published"), 1) as (trainer, (rank,)):
            trained = await two_steps(trainer, tiny, tmp_path / "one")
            await trainer.stop()
            assert rank.wait(300) == 0
            return trained

    async def together() -> tuple[list[StepResult], dict[str, np.ndarray]]:
        async with launched(init(tiny, tmp_path / "two" / "published"), 2) as (trainer, ranks):
            trained = await two_steps(trainer, tiny, tmp_path / "two")
            assert listening_addresses(ranks) == {LOOPBACK}
            await trainer.stop()
            for rank in ranks:
                await rank.finished(300)
            return trained

    one, weights_of_one = asyncio.run(alone())
    two, weights_of_two = asyncio.run(together())
    for a, b in zip(one, two, strict=True):
        for name in ("loss", "grad_norm", "entropy", "kl/behavior_proximal", "behavior_weight/mean"):
            assert a.metrics[name] == pytest.approx(b.metrics[name], rel=1e-4, abs=1e-5), name
    for name, weight in weights_of_one.items():
        np.testing.assert_allclose(weight, weights_of_two[name], atol=1e-5, err_msg=name)


def test_a_frozen_rank_and_then_a_killed_one_are_named_with_pid_version_and_the_ends_of_their_logs(
    tiny: Path, tmp_path: Path
) -> None:
    async def scene() -> None:
        short = DEADLINES.model_copy(update={"step": 1.0})
        async with launched(init(tiny, tmp_path / "published"), ranks=2, deadlines=short) as (trainer, ranks):
            for process in ranks:
                os.kill(process.pid, signal.SIGSTOP)
            with pytest.raises(DeadlineError) as caught:
                await trainer.step(batch(4, groups=4, size=4))
            frozen = str(caught.value)
            for rank, process in enumerate(ranks):
                assert f"trainer rank {rank} (pid {process.pid} on " in frozen
                assert re.search(rf"(?s)trainer-{rank}\.log:.*\(pid {process.pid}\) at version 4: ready", frozen)
            assert "at version 4 to answer Step; 0 of 2 ranks have answered" in frozen
            assert re.search(r"controller waits \d+\.\d s", frozen)
            killed = ranks[1].pid
            os.kill(killed, signal.SIGKILL)
            said = (
                rf"(?s)trainer-1 \(pid {killed}\) was killed by SIGKILL.*trainer-1\.log:.*\(pid {killed}\) at version 4"
            )
            with pytest.raises(ProcessDied, match=said):
                await trainer.failure()
            for wait in (trainer.save(tmp_path / "never"), trainer.weights(5)):
                with pytest.raises(ProcessDied, match=said):
                    await wait

    asyncio.run(scene())
