"""Define the typed recipe tree. One YAML file is one complete run; every field has a default and a docstring.

    YAML text ─► tree with line numbers ─► `--set` overrides ─► Recipe (validated, frozen) ─► recipe.yaml of the run

`load_recipe` raises RecipeError before anything starts: file, line, field, value, rule and the nearest valid name.
"""

import contextlib
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, model_validator

from arl.config.capabilities import validate_supported
from arl.config.cluster_section import Cluster as Cluster
from arl.config.data_section import Data as Data
from arl.config.data_section import task_evaluation
from arl.config.engine_section import EngineConfig as EngineConfig
from arl.config.eval_section import Eval as Eval
from arl.config.objective_section import AdvantageSection as AdvantageSection
from arl.config.objective_section import ObjectiveSection as ObjectiveSection
from arl.config.reward_section import Reward as Reward
from arl.config.rollout_section import LagFile as LagFile
from arl.config.rollout_section import Rollout as Rollout
from arl.config.run_section import Deadlines as Deadlines
from arl.config.run_section import Output as Output
from arl.config.run_section import VirtualCosts as VirtualCosts
from arl.config.section import FilePath, Positive, Section, Seed, Tokens
from arl.config.train_section import Train as Train
from arl.config.worlds import TRAITS, WorldName, WorldTraits
from arl.types import Transport


class TinyModel(Section):
    """Make a small Llama-shaped model with the vocabulary of the task."""

    hidden_size: Positive = 128
    """Width of the residual stream."""
    layers: Positive = 2
    """Decoder blocks."""
    heads: Positive = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: Positive = 384
    """Width of the feed-forward."""
    context: Tokens = 512
    """Longest sequence."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "TinyModel":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"model.tiny.hidden_size {self.hidden_size} must be a multiple of 2 x heads ({2 * self.heads})"
            )
        return self


class Model(Section):
    """Say where the weights come from: exactly one of `path` and `tiny`."""

    path: FilePath | None = None
    """Directory or Hugging Face name of a causal language model with its tokenizer. NAME@REVISION pins a branch, tag or
    commit."""
    tiny: TinyModel | None = None
    """Needs a task with its own vocabulary, and usually `warmup`."""

    @model_validator(mode="after")
    def _one_source(self) -> "Model":
        if (self.path is None) == (self.tiny is None):
            raise ValueError("model: give exactly one of model.path and model.tiny")
        return self


class Sync(Section):
    """Say how new weights reach the engines."""

    transport: Literal["auto", Transport] = "auto"
    """file: a memory-backed file system, or the run directory with several nodes. broadcast: NCCL, or gloo without
    GPUs. ipc: shared memory, for engines on the trainer's GPUs. memory: for engines in the trainer's process. auto:
    what suits the devices."""
    bucket_megabytes: Positive = 512
    """broadcast, ipc: 10^6 bytes of tensors that travel together. A larger tensor travels alone."""
    interrupt: bool = True
    """true: episodes in progress go on with the new weights. false: they end first and none begins meanwhile, so that
    none spans two versions."""
    check: bool = False
    """Compare each weight of the engine with the trainer's after each swap. Only for engines on one GPU each."""

    @property
    def bucket_bytes(self) -> int:
        """Return the size of a bucket in bytes."""
        return self.bucket_megabytes * 10**6


class Recipe(Section):
    """Describe one complete run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Name of the run directory."""
    seed: Seed = 0
    """Everything but timing repeats with the same seed."""
    mode: Literal["disaggregated", "collocated"] = "disaggregated"
    """Engines and trainer run at once on their own devices, or take turns on the same."""
    launcher: str = "local"
    """`local`: processes start on this machine; `slurm`, `ray`: on those of `cluster`; or a `module:attribute`
    (arl.launch.base)."""
    cluster: Cluster = Cluster()
    world: WorldName = "wall"
    """wall: processes on the wall clock. virtual: one process on the CPU in virtual time, repeatable to the last
    bit."""
    model: Model
    data: Data
    warmup: bool = False
    """Teach a tiny model its task by supervised learning before RL."""
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    engine: EngineConfig = EngineConfig()
    sync: Sync = Sync()
    objective: SerializeAsAny[ObjectiveSection] = Field(default_factory=lambda: ObjectiveSection.model_validate({}))
    advantage: SerializeAsAny[AdvantageSection] = Field(default_factory=lambda: AdvantageSection.model_validate({}))
    train: Train = Train()
    eval: Eval = Eval()
    deadlines: Deadlines = Deadlines()
    virtual: VirtualCosts = VirtualCosts()
    output: Output = Output()

    @property
    def world_traits(self) -> WorldTraits:
        """Return what kind of world it is."""
        return TRAITS[self.world]

    @property
    def run_directory(self) -> Path:
        """Return the directory of the run, unless one of this name exists: see arl.run.resume."""
        return Path(self.output.directory) / self.name

    @property
    def evaluates_beside(self) -> bool:
        """Return whether an engine replica of its own evaluates checkpoints while training goes on."""
        return self.eval.every > 0 and not self.world_traits.one_process

    @model_validator(mode="before")
    @classmethod
    def _evaluate_as_the_task_does(cls, values: Any) -> Any:
        """Fill the section `eval` with what the task declares, where the recipe is silent."""
        if not isinstance(values, dict):
            return values
        data = values.get("data")
        given = values.get("eval", {})
        task = data.get("task") if isinstance(data, dict) else None
        if isinstance(task, str) and isinstance(given, dict):
            with contextlib.suppress(ValueError):  # the section `data` says that there is no such task
                return values | {"eval": task_evaluation(task) | given}
        return values

    @model_validator(mode="after")
    def _validate(self) -> "Recipe":
        per_step = self.rollout.problems_per_step
        minibatches = self.train.minibatches
        if per_step % minibatches:
            raise ValueError(f"train.minibatches {minibatches} must divide rollout.problems_per_step {per_step}")
        self._validate_learning()
        self._validate_model()
        if self.mode == "collocated" and self.engine.kv_policy == "keep":
            raise ValueError("engine.kv_policy keep is for disaggregated runs: collocated engines give up their cache")
        self._validate_backend()
        if self.rollout.lag is not None:
            self._validate_lag()
        cap = self.rollout.max_groups
        if cap is not None and cap < per_step:
            raise ValueError(f"rollout.max_groups {cap} can never fill a step of {per_step} problems")
        self._validate_overlong()
        if self.world_traits.one_process:
            self._validate_one_process()
        return self

    def _validate_overlong(self) -> None:
        overlong = self.reward.overlong
        budget = self.rollout.max_new_tokens
        if overlong is not None and overlong.buffer >= budget:
            raise ValueError(
                f"reward.overlong.buffer {overlong.buffer}: the penalty would begin before the first token; give fewer "
                f"tokens than rollout.max_new_tokens {budget}"
            )

    def _validate_model(self) -> None:
        if self.model.tiny is not None and self.data.task is None:
            raise ValueError("model.tiny takes its vocabulary from data.task: name a task or give model.path")
        if self.warmup and self.model.tiny is None:
            raise ValueError("warmup: teaches a model.tiny its task; a model of model.path is tuned by `arl sft`")

    def _validate_backend(self) -> None:
        engine = self.engine
        capabilities = engine.capabilities
        validate_supported(self, capabilities, f"the backend {engine.kind}")
        if self.sync.check and engine.tensor_parallel > 1:
            raise ValueError(
                f"sync.check true: weights are compared whole, and engine.tensor_parallel {engine.tensor_parallel} "
                "divides them; leave it out, or use tensor_parallel 1"
            )
        self._validate_transport(capabilities.transports)

    def _validate_transport(self, backend_transports: Collection[Transport]) -> None:
        """Check a transport that no device could make possible; arl.sync.choose checks it against the devices."""
        transport = self.sync.transport
        if transport == "auto":
            return
        one_process = self.world_traits.one_process
        named = f"sync.transport {transport}"
        is_sent = transport in ("broadcast", "ipc")
        if transport not in backend_transports:
            can = ", ".join(sorted(backend_transports))
            raise ValueError(
                f"{named}: the backend {self.engine.kind} takes weights by {can}; use auto, or one of these"
            )
        if transport == "memory" and not one_process:
            raise ValueError(f"{named}: in this world engines are processes of their own; use auto")
        if is_sent and one_process:
            raise ValueError(f"{named}: in this world engines are in the trainer's process; use memory or file")
        if is_sent and self.rollout.lag is not None:
            raise ValueError(f"{named}: with rollout.lag checkpoints copy the files that engines load; use file")

    def _validate_learning(self) -> None:
        objective = self.objective
        advantage = self.advantage
        size = self.rollout.group_size
        if size < advantage.smallest_group:
            raise ValueError(
                f"rollout.group_size {size} gives every episode advantage 0 under advantage.kind {advantage.kind}: "
                f"use at least {advantage.smallest_group}"
            )
        if objective.scope == "sequence" and advantage.per == "token":
            raise ValueError(
                f"advantage.kind {advantage.kind} differs from token to token, and objective.kind {objective.kind} "
                "takes one advantage for a whole trajectory; choose an objective of scope token, like decoupled_ppo"
            )

    def _validate_lag(self) -> None:
        if self.mode == "collocated":
            raise ValueError("mode collocated: with rollout.lag the trainer runs ahead of engines; use disaggregated")
        if self.engine.kv_policy == "keep":
            raise ValueError("engine.kv_policy keep: with rollout.lag no swap meets an open request; use recompute")

    def _validate_one_process(self) -> None:
        here = f"world {self.world}"
        if self.train.ranks > 1:
            raise ValueError(f"train.ranks {self.train.ranks}: {here} trains in one process; use 1 rank")
        for name in ("engine", "train", "reward"):
            section = getattr(self, name)
            if section.environment:
                raise ValueError(f"{name}.environment: {here} starts no processes of that side; leave it out")
            threads = getattr(section, "threads", None)
            if threads not in (None, 1):
                raise ValueError(f"{name}.threads {threads}: {here} computes with one thread; leave it out")
