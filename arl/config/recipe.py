"""The typed recipe tree. One YAML file is one complete run; every field has a default, a unit and a docstring.

    YAML text ─► tree with line numbers ─► `--set` overrides ─► Recipe (validated, frozen) ─► recipe.yaml of the run

`load_recipe` raises RecipeError before anything starts: file, line, field, value, rule and the nearest valid name.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from arl.config.data_section import Data as Data
from arl.config.data_section import Eval as Eval
from arl.config.data_section import Reward as Reward
from arl.config.data_section import Warmup as Warmup
from arl.config.engine_section import EngineConfig as EngineConfig
from arl.config.model_section import Model as Model
from arl.config.model_section import TinyModel as TinyModel
from arl.config.rollout_section import LagFile as LagFile
from arl.config.rollout_section import Rollout as Rollout
from arl.config.run_section import Deadlines as Deadlines
from arl.config.run_section import Output as Output
from arl.config.run_section import VirtualCosts as VirtualCosts
from arl.config.section import (
    NonNegative,
    Section,
)
from arl.config.sync_section import Sync as Sync
from arl.config.train_section import Objective as Objective
from arl.config.train_section import Train as Train


class Recipe(Section):
    """One complete run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Names the run directory."""
    seed: NonNegative = 0
    """Everything but timing repeats with it."""
    mode: Literal["disaggregated", "collocated"] = "disaggregated"
    """Engines and trainer run at once on their own devices, or take turns on the same."""
    launcher: str = "local"
    """Starts the processes of the run: `local` on this machine, or module:attribute of your own (arl.launch.base)."""
    world: Literal["wall", "virtual"] = "wall"
    """Processes on wall time; or everything in one process, on the CPU, in virtual time: bit-reproducible."""
    model: Model
    data: Data
    warmup: Warmup | None = None
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    engine: EngineConfig = EngineConfig()
    sync: Sync = Sync()
    objective: Objective = Objective()
    train: Train = Train()
    eval: Eval = Eval()
    deadlines: Deadlines = Deadlines()
    virtual: VirtualCosts = VirtualCosts()
    output: Output = Output()

    @property
    def run_directory(self) -> Path:
        return Path(self.output.directory) / self.name

    @model_validator(mode="after")
    def _possible(self) -> "Recipe":
        p, m = self.rollout.problems_per_step, self.train.minibatches
        if p % m:
            raise ValueError(f"train.minibatches {m} must divide rollout.problems_per_step {p}")
        if self.rollout.group_size < 2:
            raise ValueError("rollout.group_size 1 gives every episode advantage 0: use at least 2")
        if self.model.tiny is not None and self.data.task is None:
            raise ValueError("model.tiny takes its vocabulary from data.task: name a task or give model.path")
        if self.warmup is not None and self.data.task is None:
            raise ValueError("warmup needs data.task: only a task makes its own demonstrations; see `arl sft`")
        if self.mode == "collocated" and self.engine.kv_policy == "keep":
            raise ValueError("engine.kv_policy keep is for disaggregated runs: collocated engines give up their cache")
        engine, exact = self.engine, self.rollout.lag is not None
        self.sync.refuse_impossible(self.world, engine.kind, engine.tensor_parallel, exact)
        if exact:
            self._possible_with_a_lag()
        cap = self.rollout.max_groups
        if cap is not None and cap < p:
            raise ValueError(f"rollout.max_groups {cap} can never fill a step of {p} problems")
        if self.world == "virtual":
            self._possible_virtually()
        return self

    def _possible_with_a_lag(self) -> None:
        if self.mode == "collocated":
            raise ValueError("mode collocated: with rollout.lag the trainer runs ahead of engines; use disaggregated")
        if self.engine.kv_policy == "keep":
            raise ValueError("engine.kv_policy keep: with rollout.lag no swap meets an open request; use recompute")

    def _possible_virtually(self) -> None:
        if self.engine.kind != "embedded":
            raise ValueError(f"engine.kind {self.engine.kind}: world virtual generates in this process; use embedded")
        if self.train.ranks > 1:
            raise ValueError(f"train.ranks {self.train.ranks}: world virtual trains in one process; use 1 rank")
        for field, environment in (
            ("engine", self.engine.environment),
            ("train", self.train.environment),
            ("reward", self.reward.environment),
        ):
            if environment:
                raise ValueError(f"{field}.environment: world virtual has one process, and starts none; leave it out")
        for field, threads in (("train", self.train.threads), ("engine", self.engine.threads)):
            if threads not in (None, 1):
                raise ValueError(f"{field}.threads {threads}: world virtual computes with one thread; leave it out")
