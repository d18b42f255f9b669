"""Run the stages that need no model: environments, collectives between all devices, shared memory."""

import asyncio
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from arl.clock import in_thread
from arl.config.recipe import Recipe
from arl.errors import RunError
from arl.launch.address import rank_environments
from arl.launch.base import Command, Launcher, Resources
from arl.run.doctor import examine
from arl.run.finding import Finding
from arl.run.smoke.small_model import version_bytes
from arl.run.smoke.smoke_types import StageOutcome, Verdict
from arl.sync.weight_folders import SHARED_MEMORY

PROCESS_SECONDS = 120.0  # of a check in a process of its own; the stage's deadline comes first
CPU_RANKS = 2
CPU_MEGABYTES = 16
GPU_MEGABYTES = 256
SLOW_GPU_BUS = 10.0  # GB/s of an all_reduce, below which copies go through the host's memory
SLOW_MEMORY = 0.5  # GB/s
MOST_BYTES = 8 * 10**9  # written in some seconds
SHARE_OF_FREE = 0.5

P2P_REMEDY = "look at `nvidia-smi topo -m`, and at NCCL_P2P_DISABLE and NCCL_SHM_DISABLE in your environment"


async def check_environments(recipe: Recipe | None, python: str | None) -> StageOutcome:
    """Report what `arl doctor` reports."""
    findings = await in_thread(lambda: list(examine(recipe, python)))
    missing = [finding for finding in findings if not finding.good]
    said = f"{len(findings)} things looked at"
    if missing:
        said = "; ".join(finding.what for finding in missing)
    return StageOutcome(
        said=said,
        verdict="failed" if missing else "ok",
        measured={"lines": [finding.what for finding in findings]},
        findings=missing,
    )


async def check_collectives(launcher: Launcher) -> StageOutcome:
    """Run an all-reduce and a broadcast between all devices of the node, or between two ranks on a CPU."""
    node = launcher.nodes[0]
    resources = [Resources(1, (device,)) for device in node.devices]
    if not resources:
        resources = [Resources(1)] * min(CPU_RANKS, node.cores)
    megabytes = GPU_MEGABYTES if node.devices else CPU_MEGABYTES
    found: list[dict[str, Any]] = []

    def keep(line: str) -> None:
        if line.startswith("{"):
            found.append(json.loads(line))

    argv = (sys.executable, "-m", "arl.run.smoke.collective_check", str(megabytes))
    with rank_environments(node.address, len(resources)) as environments:
        started = []
        for rank, environment in enumerate(environments):
            command = Command(argv, environment)
            started.append(await launcher.start(f"collective-{rank}", command, resources[rank], keep))
        async with asyncio.TaskGroup() as tasks:
            for process in started:
                tasks.create_task(process.finished(PROCESS_SECONDS))
    if not found:
        raise RunError(f"the ranks ended without a result.\n{started[0].last_words()}")
    return _judge_collectives(found[0], bool(node.devices))


def _judge_collectives(found: dict[str, Any], on_gpus: bool) -> StageOutcome:
    backend = found["backend"]
    said = (
        f"{found['ranks']} ranks by {backend}: all_reduce {found['all_reduce_gb_per_s']:.2f} GB/s, broadcast "
        f"{found['slowest_broadcast_gb_per_s']:.2f} GB/s or more ({found['megabytes']} MB)"
    )
    verdict: Verdict = "ok"
    findings = []
    if found["wrong"]:
        verdict = "wrong"
        said = f"{found['wrong']} results were not what they must be; {said}"
        findings.append(Finding(False, f"{backend} between devices is wrong", P2P_REMEDY))
    elif on_gpus and found["ranks"] > 1 and found["all_reduce_bus_gb_per_s"] < SLOW_GPU_BUS:
        verdict = "slow"
        findings.append(Finding(False, f"each link carries {found['all_reduce_bus_gb_per_s']:.1f} GB/s", P2P_REMEDY))
    return StageOutcome(said=said, verdict=verdict, measured=found, findings=findings)


async def check_shared_memory(launcher: Launcher, recipe: Recipe | None, item_bytes: int) -> StageOutcome:
    """Write, map and read as much as a version of the recipe's model takes, where there is room.

    Args:
        item_bytes: of one published weight.
    """
    place = SHARED_MEMORY
    if not os.access(place, os.W_OK):
        return StageOutcome(verdict="skipped", said=f"no {place}: weights are published on disk")
    wanted = await in_thread(version_bytes, recipe, item_bytes)
    free = shutil.disk_usage(place).free
    size = int(min(wanted, free * SHARE_OF_FREE, MOST_BYTES))
    found: list[dict[str, Any]] = []

    def keep(line: str) -> None:
        if line.startswith("{"):
            found.append(json.loads(line))

    command = Command((sys.executable, "-m", "arl.run.smoke.shared_memory_check", str(place), str(size)))
    process = await launcher.start("shared-memory", command, Resources(1), keep)
    await process.finished(PROCESS_SECONDS)
    if not found:
        raise RunError(f"the check ended without a result.\n{process.last_words()}")
    return _judge_memory(found[0], place, wanted, free)


def _judge_memory(found: dict[str, Any], place: Path, wanted: int, free: int) -> StageOutcome:
    said = (
        f"{found['gigabytes']:.2f} GB: written at {found['write_gb_per_s']:.2f} GB/s, mapped and read at "
        f"{found['read_gb_per_s']:.2f} GB/s"
    )
    findings = []
    verdict: Verdict = "ok"
    if not found["is_right"]:
        verdict = "wrong"
        said = f"what was read is not what was written; {said}"
    elif min(found["write_gb_per_s"], found["read_gb_per_s"]) < SLOW_MEMORY:
        verdict = "slow"
    if free < wanted:
        verdict = "slow" if verdict == "ok" else verdict
        what = f"{place} has {free / 1e9:.1f} GB free, and a version takes {wanted / 1e9:.1f} GB"
        findings.append(Finding(False, what, f"give the container a larger {place} (docker run --shm-size)"))
    return StageOutcome(said=said, verdict=verdict, measured=found, findings=findings)
