"""Serve a run with engines of this machine: `arl engines join`.

RUN/recipe.yaml, RUN/secrets, RUN/control ─► engine servers here, as children ─► JoinEngine each ─► the run uses them
Ctrl-C, a server's death ─► RemoveEngine each ─► the servers stop, as at the run's end or after `arl engines remove`
"""

import asyncio
import os
import platform
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from arl.clock import in_thread
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.engine.backend import probe_backend
from arl.errors import ArlError, InputError
from arl.launch.base import Process, Resources
from arl.launch.devices import visible_cores, visible_devices
from arl.launch.local import LocalLauncher
from arl.launch.network import LOOPBACK, host_identity, is_loopback, own_address
from arl.launch.run_secrets import read_secrets
from arl.metrics.run_files import LOGS, RECIPE
from arl.run.control import JoinEngine, LiveRun, RemoveEngine, RunControl
from arl.run.evaluation.results import model_sha256
from arl.run.failures import reported_failures
from arl.run.processes import EngineServers

LOOK_SECONDS = 1.0
REMOVE_SECONDS = 30.0  # for a controller that is busy; then this side leaves by itself


async def join_run(run: Path, replicas: int, host: str | None, note: Callable[[str], None]) -> None:
    """Join a run, and serve it until it ends, or until this is cancelled.

    Args:
        run: its directory.
        replicas: engines to start.
        host: address on which they listen and are reached; None: that of cluster.interface, or the one to which this
            machine's name resolves.

    Raises:
        InputError: this machine cannot join; nothing was started.
        RunError: a server died, or the controller did not take it.
    """
    control = RunControl(run)
    state = await control.describe()
    recipe = load_recipe(run / RECIPE)
    if recipe.mode == "collocated":
        raise InputError(
            f"{run}: in mode collocated engines and trainer take turns on the same devices, of which an engine that "
            "joins would have none; start the run in mode disaggregated"
        )
    address = _own_address(run, state, host, recipe.cluster.interface)
    trust = read_secrets(run)
    await in_thread(_check_files, state)
    resources = _divide(replicas, state, recipe)
    probe_backend(recipe)
    async with (
        reported_failures(),
        LocalLauncher(run / LOGS, recipe.deadlines.shutdown, address=address) as launcher,
    ):
        servers = EngineServers(
            recipe=recipe.model_copy(update={"seed": recipe.seed + secrets.randbelow(1 << 20)}),
            versions=state.versions,
            resources=resources,
            launcher=launcher,
            trust=trust,
            side=f"engine-{platform.node()}-{secrets.token_hex(3)}",
        )
        processes = await servers.start_all()
        try:
            for process in processes:
                url = await process.ready(recipe.deadlines.startup)
                engine = JoinEngine(name=process.role, url=url, node=platform.node(), pid=process.pid)
                await control.ask(engine, recipe.deadlines.engine_joined)
                note(f"{process} serves {run}; Ctrl-C takes it out of the run")
            await _serve(control, processes, note)
        except BaseException:  # Ctrl-C as well
            for process in processes if control.is_open else ():
                try:
                    answer = await control.ask(RemoveEngine(process.role), REMOVE_SECONDS)
                    note(answer.done)
                except ArlError as error:  # this machine leaves in any case, and the run finds out by the connection
                    note(f"{process.role} leaves: {error}")
            raise


def _own_address(run: Path, state: LiveRun, host: str | None, interface: str | None) -> str:
    """Return the address of this machine on which the run reaches it.

    Raises:
        InputError: the run reaches nothing beyond its own host, or this machine has no such address.
    """
    if state.only_host is not None:
        if state.only_host != host_identity():
            raise InputError(
                f"{run}: its processes listen on loopback, which only its own host reaches; join there, or "
                "start the run with cluster.interface, or with launcher slurm or ray"
            )
        return LOOPBACK
    try:
        address = host or own_address(interface)
    except OSError as error:
        raise InputError(f"this machine has no address to join with: {error}; give --host") from error
    if is_loopback(address):
        raise InputError(f"{address}: the run would not reach this machine there; give another --host")
    return address


def _divide(replicas: int, state: LiveRun, recipe: Recipe) -> dict[int, Resources]:
    """Divide the cores, and the GPUs if the run's engines have some, between the engines that join.

    Raises:
        InputError: this machine has too few GPUs.
    """
    each = len(state.like.devices)
    devices = visible_devices() if each else ()
    if each * replicas > len(devices):
        raise InputError(f"--replicas {replicas}: each needs {each} GPUs, and {len(devices)} are visible here")
    threads = recipe.engine.threads or max(visible_cores() // replicas, 1)
    like = replace(state.like, threads=threads, node=0)
    return {i: replace(like, devices=devices[i * each : (i + 1) * each]) for i in range(replicas)}


def _check_files(state: LiveRun) -> None:
    """Check that this machine has the files from which the run's engines load weights.

    Raises:
        InputError: it does not see them, or its weights, config or tokenizer are others.
    """
    served = state.versions.served
    for place in filter(None, (served, state.weights)):
        if not os.path.isdir(place):
            raise InputError(
                f"{place}: the run's engines load weights from there, and this machine does not see it; put the model "
                "where both see it, and start the run with --set sync.transport=broadcast"
            )
    if model_sha256(Path(served)) != state.model:
        raise InputError(
            f"this machine's {served}: has other weights, or another config or tokenizer, than the engines of the run; "
            "give it the files of the run's machine"
        )


async def _serve(control: RunControl, processes: Sequence[Process], note: Callable[[str], None]) -> None:
    """Return when the run has ended, or has removed all of these engines.

    Waits a second between two questions to the controller; unblocked by the end of a server as well.

    Raises:
        RunError: a server died, or the controller is gone without an end of the run.
    """
    names = {process.role for process in processes}
    while True:
        try:
            state = await control.describe()
        except ArlError:
            if control.is_open:
                raise
            note(f"{control.run} has ended")
            return
        for process in processes:  # for whose death the controller may have removed the engine
            if process.exit_code is not None:
                raise await process.died()
        if names.isdisjoint(engine.role for engine in state.engines):
            note(f"{control.run} has none of these engines any more")
            return
        await asyncio.sleep(LOOK_SECONDS)
