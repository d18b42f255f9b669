"""Serve a run with engines of this machine: `arl engines join`.

RUN/recipe.yaml, RUN/secrets, RUN/control ─► engine servers here, as children ─► JoinEngine each ─► the run uses them
                                                  │
Ctrl-C, the run's end, a server's death, `arl engines remove` ─► RemoveEngine each ─► the servers stop
"""

import asyncio
import contextlib
import os
import platform
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import arl
from arl.clock import in_thread
from arl.config.cluster_section import Cluster
from arl.config.recipe import Recipe
from arl.config.recipe_file import load_recipe
from arl.engine.backend import probe_backend
from arl.errors import ArlError, InputError, RunError
from arl.launch.address import LOOPBACK, host_identity, own_address
from arl.launch.base import Process, Resources
from arl.launch.devices import visible_cores, visible_devices
from arl.launch.local import LocalLauncher
from arl.launch.tls import is_loopback
from arl.metrics.run_files import LOGS, RECIPE
from arl.run.control.control_client import ControllerWatch, RunControl
from arl.run.control.control_messages import JoinEngine, LiveRun, RemoveEngine
from arl.run.control.control_server import refuse_other_model
from arl.run.control.run_key_file import read_trust
from arl.run.engines import EngineServers
from arl.run.evaluation.model_identity import model_sha256
from arl.run.failures import reported_failures

LOOK_SECONDS = 1.0
REMOVE_SECONDS = 30.0  # for a controller that is busy; then this side leaves by itself


@dataclass(frozen=True)
class JoinOptions:
    """Say with what this machine joins.

    Args:
        run: directory of the run.
        replicas: engines to start.
        host: address on which they listen and are reached; None: that of the interface.
        interface: network interface of that address; None: the recipe's, or the one to which this machine's name
            resolves.
    """

    run: Path
    replicas: int = 1
    host: str | None = None
    interface: str | None = None


async def join_run(options: JoinOptions, note: Callable[[str], None]) -> None:
    """Join a run, and serve it until it ends, or until this is cancelled.

    Raises:
        InputError: this machine cannot join; nothing was started.
        RunError: a server died, or the controller did not take it.
    """
    control = RunControl(options.run)
    state = await control.state()
    recipe = load_recipe(options.run / RECIPE, ())
    address = join_address(options, state, recipe)
    trust = read_trust(options.run)
    _refuse_unseen_files(state)
    served = state.versions.served
    model = await in_thread(model_sha256, Path(served))
    refuse_other_model(state, f"this machine's {served}", model)
    resources = join_resources(options, state, recipe)
    probe_backend(recipe)
    node = platform.node()
    async with (
        reported_failures(),
        LocalLauncher(options.run / LOGS, recipe.deadlines.shutdown, Cluster(), address=address) as launcher,
    ):
        servers = EngineServers(
            recipe=recipe.model_copy(update={"seed": recipe.seed + secrets.randbelow(1 << 20)}),
            versions=state.versions,
            resources=resources,
            launcher=launcher,
            trust=trust,
            side=f"engine-{node}-{secrets.token_hex(2)}",
        )
        processes = await servers.start_all()
        async with _joined(control, recipe, processes, node, model, note):
            await _serve(control, processes, note)


def join_address(options: JoinOptions, state: LiveRun, recipe: Recipe) -> str:
    """Return the address of this machine on which the run reaches it.

    Raises:
        InputError: the run reaches nothing beyond its own host, or this machine has no such address.
    """
    if state.is_local:
        if state.host != host_identity():
            raise InputError(
                f"{options.run}: its processes listen on loopback, which only its own host reaches; join there, or "
                "start the run with cluster.interface, or with launcher slurm or ray"
            )
        return LOOPBACK
    try:
        address = options.host or own_address(options.interface or recipe.cluster.interface)
    except OSError as error:
        raise InputError(f"this machine has no address to join with: {error}; give --interface or --host") from error
    if is_loopback(address):
        raise InputError(f"{address}: the run would not reach this machine there; give --interface or --host")
    return address


def join_resources(options: JoinOptions, state: LiveRun, recipe: Recipe) -> list[Resources]:
    """Divide the cores, and the GPUs if the run's engines have some, between the engines that join.

    Raises:
        InputError: this machine has too few GPUs.
    """
    each = len(state.like.devices)
    devices = visible_devices() if each else ()
    needed = each * options.replicas
    if needed > len(devices):
        raise InputError(
            f"--replicas {options.replicas}: each needs {each} GPUs, as the run's own engines do, and {len(devices)} "
            "are visible here"
        )
    threads = recipe.engine.threads or max(visible_cores() // options.replicas, 1)
    resources = []
    for replica in range(options.replicas):
        own = devices[replica * each : (replica + 1) * each]
        resources.append(replace(state.like, threads=threads, devices=own, node=0))
    return resources


def _refuse_unseen_files(state: LiveRun) -> None:
    """Raise InputError if this machine does not see the files from which engines load weights."""
    if not os.path.isdir(state.versions.served):
        raise InputError(
            f"{state.versions.served}: the run's engines begin with this model, and this machine does not see it; put "
            "it where both see it under the same path"
        )
    if state.weights is not None and not os.path.isdir(state.weights):
        raise InputError(
            f"{state.weights}: the run's engines load new weights from there, and this machine does not see it; start "
            "the run with --set sync.transport=broadcast"
        )


@contextlib.asynccontextmanager
async def _joined(
    control: RunControl,
    recipe: Recipe,
    processes: Sequence[Process],
    node: str,
    model: str,
    note: Callable[[str], None],
) -> AsyncIterator[None]:
    """Have the controller take each server as soon as it is ready, and give it back at the end."""
    joined: list[str] = []
    try:
        for process in processes:
            url = await process.ready(recipe.deadlines.startup)
            guest = JoinEngine(
                name=process.role,
                url=url,
                node=node,
                pid=process.pid,
                arl=arl.__version__,
                model=model,
            )
            joined.append(guest.name)  # the controller may take it although its answer does not arrive
            await control.ask(guest, recipe.deadlines.engine_joined)
            note(f"{process} serves {control.run}; Ctrl-C takes it out of the run")
        yield
    finally:
        await _leave(control, joined, note)


async def _leave(control: RunControl, joined: Sequence[str], note: Callable[[str], None]) -> None:
    """Take the engines out of the run, if it has them still."""
    state = control.read_state()
    if state is None:
        return
    members = {engine.name for engine in state.engines}
    for name in members.intersection(joined):
        try:
            note(await control.ask(RemoveEngine(name), REMOVE_SECONDS))
        except ArlError as error:  # this machine leaves in any case, and the run finds out by the connection
            note(f"{name} leaves without being removed: {error}")


async def _serve(control: RunControl, processes: Sequence[Process], note: Callable[[str], None]) -> None:
    """Return when the run has ended, or has removed all of these engines.

    Waits a second between two looks at the run's state; unblocked by the end of a server as well.

    Raises:
        RunError: a server died, or the controller is gone without an end of the run.
    """
    async with asyncio.TaskGroup() as tasks:
        deaths = [tasks.create_task(process.died()) for process in processes]
        watch = ControllerWatch(control)
        names = {process.role for process in processes}
        joined_at = await control.state()  # written after the controller had taken them
        while not watch.is_gone():
            assert watch.state is not None
            has_them = names.intersection(engine.name for engine in watch.state.engines)
            done, _ = await asyncio.wait(deaths, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for death in done:
                raise death.result()
            if watch.state.beat > joined_at.beat and not has_them:
                note(f"{control.run} has none of these engines any more")
                break
        else:
            _report_end(control, note)
        for death in deaths:
            death.cancel()


def _report_end(control: RunControl, note: Callable[[str], None]) -> None:
    if control.read_state() is not None:
        raise RunError(f"{control.run}: its controller has not written its state for a minute; it was killed, or hangs")
    note(f"{control.run} has ended")
