"""Run every part of a machine once: `arl doctor --smoke [RECIPE]`.

    environments ─► collectives ─► shared memory ─► small model
                        ─► for each precision: engines ∥ trainer, logprobs; with the first one every transport
                                                                            ─► advice ─► SmokeReport

Each stage has a deadline (arl.run.smoke.stage_runner), and only those stages are skipped whose parts have failed.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from arl import clock
from arl.clock import in_thread, now
from arl.config.recipe import Recipe
from arl.data.model_limits import model_limits
from arl.errors import InputError
from arl.launch.address import new_key
from arl.launch.base import Launcher
from arl.launch.launchers import make_launcher
from arl.launch.local import LocalLauncher
from arl.launch.trust import RunTrust
from arl.run.auto import resolve_auto
from arl.run.smoke.machine_stages import check_collectives, check_environments, check_shared_memory
from arl.run.smoke.small_model import make_small_model, small_config
from arl.run.smoke.smoke_advice import advice
from arl.run.smoke.smoke_display import SmokeDisplay
from arl.run.smoke.smoke_document import Secrets, describe_machine, installed_versions, shown_environment
from arl.run.smoke.smoke_rounds import Round
from arl.run.smoke.smoke_sides import Place
from arl.run.smoke.smoke_trials import Trial, backends, make_trial, precisions
from arl.run.smoke.smoke_types import LogprobRow, SmokeReport, StageOutcome, worst
from arl.run.smoke.stage_runner import TIME_IS_OVER, StageRunner
from arl.sync.buckets import ITEM_BYTES

# Deadlines of stages, seconds.
ENVIRONMENTS = 60.0
COLLECTIVES = 45.0
MEMORY = 30.0
MODEL = 40.0

ROUND = 20.0  # of which less than this is not worth a start

PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL of a check


@dataclass(frozen=True)
class SmokeRequest:
    """Say what to test.

    Args:
        recipe: whose engine, mode and dtypes are tested; None: everything that is found.
        python: interpreter to look for backends in, instead of the recipe's.
        seconds: for all stages.
    """

    recipe: Recipe | None
    python: str | None
    seconds: float


def smoke_test(request: SmokeRequest, display: SmokeDisplay) -> SmokeReport:
    """Run all stages. Every process has ended when this returns or raises."""

    async def run() -> SmokeReport:
        return await _SmokeTest(request, display).run()

    return clock.run(run)


class _SmokeTest:
    """Hold what stages find, from the first to the report."""

    def __init__(self, request: SmokeRequest, display: SmokeDisplay) -> None:
        self._request = request
        self._recipe = request.recipe
        self._trust = RunTrust(new_key())
        self._secrets = Secrets(self._trust.key, os.environ)
        self._display = display
        self._runner = StageRunner(request.seconds, display.begin, display.show, self._secrets.hide_in)
        self._directory = Path(tempfile.mkdtemp(prefix="arl-smoke-"))
        self._rows: list[LogprobRow] = []
        self._engines: dict[str, str] = {}  # kind -> what was found

    async def run(self) -> SmokeReport:
        """Run the stages in order, and report."""
        start = now()
        runner = self._runner
        try:
            await runner.run(
                "environments", ENVIRONMENTS, lambda: check_environments(self._recipe, self._request.python)
            )
            await self._check_machine()
            await self._check_system()
            return self._secrets.hide_in(self._report(now() - start))
        finally:
            self._display.close()
            shutil.rmtree(self._directory, ignore_errors=True)

    async def _check_machine(self) -> None:
        launcher = self._launcher()
        dtype = "float32" if self._recipe is None else self._recipe.train.dtype
        item_bytes = ITEM_BYTES[dtype]

        async def collectives() -> StageOutcome:
            async with launcher:
                return await check_collectives(launcher)

        async def memory() -> StageOutcome:
            async with launcher:
                return await check_shared_memory(launcher, self._recipe, item_bytes)

        await self._runner.run("collectives", COLLECTIVES, collectives)
        await self._runner.run("shared memory", MEMORY, memory)

    async def _check_system(self) -> None:
        """Make the small model and the trials, and run a round for each precision."""
        node = self._launcher().nodes[0]
        on_gpus = bool(node.devices)
        model = self._directory / "model"
        pairs = precisions(self._recipe, on_gpus)
        trials_of: list[dict[str, Trial]] = []  # by precision

        async def prepare() -> StageOutcome:
            found, missing = await in_thread(backends, self._recipe, self._request.python)
            self._engines = {kind: str(one) for kind, one in found.items()}
            for kind, reason in missing.items():
                self._runner.skip(f"engine {kind}", reason)
            if not found:
                raise InputError("no engine backend was found")
            config = await in_thread(small_config, self._recipe, on_gpus)
            await in_thread(make_small_model, config, model)
            for pair in pairs:
                trials = {}
                for kind, one in found.items():
                    trials[kind] = make_trial(self._recipe, kind, one, pair, model, node, self._request.python)
                trials_of.append(trials)
            shape = f"{config.model_type}, {config.num_hidden_layers} layers of width {config.hidden_size}"
            return StageOutcome(said=f"random weights: {shape}, {config.vocab_size} tokens")

        outcome = await self._runner.run("small model", MODEL, prepare)
        if outcome.verdict != "ok":
            self._runner.skip("engines and trainer", "there is no small model, or nothing to serve it")
            return
        vocab_size = model_limits(str(model)).vocab_size
        where = Place(model, self._directory, self._trust, note=lambda line: None)
        tried: list[Round] = []
        for pair, trials in zip(pairs, trials_of, strict=True):
            one = Round(
                runner=self._runner,
                where=where,
                precision=pair,
                trials=trials,
                vocab_size=vocab_size,
                on_gpus=on_gpus,
                swaps=not tried,
            )
            tried.append(one)
        await self._run_rounds(tried)

    async def _run_rounds(self, rounds: Sequence[Round]) -> None:
        """Run each precision in turn. The processes of the next start as soon as those of this one have, if they fit.

        Without that, a start of SGLang would twice be waited for on a CPU.
        """
        following = [*rounds[1:], None]
        try:
            for this, after in zip(rounds, following, strict=True):
                if not self._runner.has_left(ROUND):
                    self._runner.skip(f"both sides, {this.precision}", TIME_IS_OVER)
                    continue

                def start_next(after: Round | None = after) -> None:
                    if after is not None and after.fits_beside_another and self._runner.has_left(ROUND):
                        after.start()

                await this.run(start_next)
                await this.close()
        finally:
            for one in rounds:
                self._rows += one.rows
                await one.close()

    def _launcher(self) -> Launcher:
        logs = self._directory / "checks"
        if self._recipe is None:
            return LocalLauncher(logs, PATIENCE)
        return make_launcher(self._recipe, logs)

    def _report(self, seconds: float) -> SmokeReport:
        stages = self._runner.stages
        recipe = "no recipe" if self._recipe is None else f"recipe {self._recipe.name}"
        return SmokeReport(
            verdict=worst([stage.verdict for stage in stages]),
            seconds=round(seconds, 1),
            recipe=recipe,
            machine=describe_machine(self._launcher().nodes[0]),
            versions=installed_versions(self._engines),
            environment=shown_environment(os.environ),
            stages=stages,
            logprobs=self._rows,
            advice=advice(self._recipe, stages, self._rows),
        )


def smoke_recipe(recipe: Recipe | None) -> Recipe | None:
    """Return the recipe with its `auto` dtypes resolved, as the stages need it.

    Raises:
        RecipeError: the recipe's launcher cannot be made.
    """
    if recipe is None:
        return None
    on_the_wall = recipe.model_copy(update={"world": "wall"})
    return resolve_auto(on_the_wall)
