"""Define the typed recipe tree. One YAML file is one complete run; every field has a default and a docstring.

    YAML text ─► tree with line numbers ─► `--set` overrides ─► Recipe (validated, frozen) ─► recipe.yaml of the run

`load_recipe` raises RecipeError before anything starts: file, line, field, value, rule and the nearest valid name.
"""

import contextlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, SerializeAsAny, SerializerFunctionWrapHandler, model_serializer, model_validator

from arl.config.capabilities import validate_supported
from arl.config.cluster_section import Cluster as Cluster
from arl.config.data_section import Data as Data
from arl.config.data_section import task_evaluation
from arl.config.engine_section import EngineConfig as EngineConfig
from arl.config.objective_section import ESS, SAMPLED
from arl.config.objective_section import AdvantageSection as AdvantageSection
from arl.config.objective_section import ObjectiveSection as ObjectiveSection
from arl.config.rollout_section import LagFile as LagFile
from arl.config.rollout_section import Rollout as Rollout
from arl.config.run_section import Deadlines as Deadlines
from arl.config.run_section import Output as Output
from arl.config.run_section import VirtualCosts as VirtualCosts
from arl.config.sandbox_section import SandboxSection as SandboxSection
from arl.config.scoring_sections import Eval as Eval
from arl.config.scoring_sections import Reward as Reward
from arl.config.section import INNER, FilePath, Positive, Section, Seed, Tokens
from arl.config.train_section import Train as Train
from arl.types import Transport

WorldName = Literal["wall", "virtual"]


@dataclass(frozen=True, kw_only=True)
class WorldTraits:
    """Declare what kind of world it is. This is known before the world is opened."""

    virtual_time: bool
    """Time jumps to the next timer when nothing can run, and every operation takes the seconds that the recipe's
    section `virtual` gives; threads and other processes have no place in it."""
    one_process: bool
    """Engines, trainer and rewards compute in this process, on the CPU, with one thread."""
    restarts_at_checkpoints: bool
    """A run is built anew from its files at each checkpoint, even if nothing interrupts it. A resumed run then equals
    the uninterrupted one to the last bit, and nothing that changes the schedule may change when it is resumed."""
    start_time: float = 0.0
    """The clock's seconds when a new run begins."""

    @property
    def time_unit(self) -> str:
        """Return the unit of the seconds that people read."""
        return "virtual s" if self.virtual_time else "s"


WALL = WorldTraits(virtual_time=False, one_process=False, restarts_at_checkpoints=False)
VIRTUAL = WorldTraits(virtual_time=True, one_process=True, restarts_at_checkpoints=True)
TRAITS: dict[WorldName, WorldTraits] = {"wall": WALL, "virtual": VIRTUAL}


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
            raise ValueError(f"model.tiny.hidden_size {self.hidden_size} must be a multiple of 2 x heads {self.heads}")
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
    interrupt: bool = True
    """true: episodes in progress go on with the new weights. false: they end first and none begins meanwhile, so that
    none spans two versions."""
    every: Positive = 1
    """Versions from one load of the engines to the next, at most rollout.staleness + 1. More of them: fewer pauses,
    less cache to rebuild, and older tokens, within the bound."""
    check: bool = False
    """Compare each weight of the engine with the trainer's after each swap. Only for engines on one GPU each."""


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
    mixture: tuple[Data, ...] = Field(default=(), validation_alias=INNER)
    """Where `data` is a list: its sections after the first."""
    warmup: bool = False
    """Teach a tiny model its task by supervised learning before RL; of several sources, the task of the first."""
    rollout: Rollout = Rollout()
    reward: Reward = Reward()
    sandbox: SandboxSection = SandboxSection()
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
    def publishes_adapters(self) -> bool:
        """Return whether engines hold the model that the run began with, and are given LoRA's adapters alone."""
        has_lag = self.rollout.lag is not None  # engines may begin with a version of merged weights
        return self.train.lora is not None and self.engine.capabilities.adapters and not has_lag

    @property
    def without_lora(self) -> "Recipe":
        """Return the recipe of engines that serve whole models, as teachers and evaluations of checkpoints do."""
        return self.model_copy(update={"train": self.train.model_copy(update={"lora": None})})

    @property
    def num_teachers(self) -> int:
        """Return how many teachers have an engine of their own."""
        teacher = self.objective.teacher
        return len(teacher.paths) if teacher is not None and teacher.place == "engine" else 0

    @property
    def evaluates_beside(self) -> bool:
        """Return whether an engine replica of its own evaluates checkpoints while training goes on."""
        return self.eval.every > 0 and not self.world_traits.one_process

    @property
    def needs_sampling_versions(self) -> bool:
        """Return whether the trainer keeps the versions that may have sampled a token."""
        return SAMPLED in self.objective.needed_columns or self.train.ratio_parts_every > 0

    @property
    def data_sections(self) -> tuple[Data, ...]:
        """Return the section `data`, or all sections of its list."""
        return (self.data, *self.mixture)

    @property
    def where_problems_are(self) -> str:
        """Name the tasks and files of all sources."""
        return ", ".join(str(data.task or data.path) for data in self.data_sections)

    @property
    def sources(self) -> dict[str, "Recipe"]:
        """Map each source's name to the recipe as it is with this source alone. The name of an only source is empty."""
        if not self.mixture:
            return {"": self}
        alone = {"weight": None, "name": None}
        return {
            data.source_name: self.model_copy(update={"data": data.model_copy(update=alone), "mixture": ()})
            for data in self.data_sections
        }

    @property
    def weights(self) -> dict[str, float]:
        """Map each source to its weight."""
        return {name: data.weight or 1.0 for name, data in zip(self.sources, self.data_sections, strict=True)}

    @property
    def curricula(self) -> dict[str, int]:
        """Map each source that has a curriculum to its epochs."""
        found = {name: source.data.curriculum for name, source in self.sources.items()}
        return {name: epochs for name, epochs in found.items() if epochs is not None}

    @model_validator(mode="before")
    @classmethod
    def _split_sources(cls, values: Any) -> Any:
        """Divide a list of sources between the fields that hold them."""
        if isinstance(values, dict) and isinstance(values.get("data"), list) and values["data"]:
            first, *others = values["data"]
            return values | {"data": first, INNER: others}
        return values

    @model_serializer(mode="wrap")
    def _join_sources(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Write several sources as the list that they were read from."""
        written: dict[str, Any] = handler(self)
        others = written.pop("mixture", ())
        if others:
            written["data"] = [written["data"], *others]
        return written

    @model_validator(mode="before")
    @classmethod
    def _evaluate_as_the_task_does(cls, values: Any) -> Any:
        """Fill the section `eval` with what the task declares, where the recipe is silent and has one source."""
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
        self._validate_sources()
        self._validate_steps()
        self._validate_model()
        self._validate_engine()
        self._validate_loads()
        if self.world_traits.one_process:
            self._validate_one_process()
        return self

    def _validate_sources(self) -> None:
        names = Counter(data.source_name for data in self.data_sections)
        for number, data in enumerate(self.data_sections):
            field = f"data.{number}" if self.mixture else "data"
            if not self.mixture:
                for name in ("weight", "name"):
                    if (value := getattr(data, name)) is not None:
                        raise ValueError(f"{field}.{name} {value}: only with several sources; leave it out")
            elif names[data.source_name] > 1 or not data.source_name:
                raise ValueError(
                    f"{field}.name {data.source_name!r}: is not the name of this source alone; give each source a "
                    "`name` of its own"
                )

        teacher = self.objective.teacher
        if teacher is not None and isinstance(teacher.path, dict) and teacher.path.keys() != self.sources.keys():
            raise ValueError(
                f"objective.teacher.path names the sources {sorted(teacher.path)}, and data has {sorted(self.sources)}"
            )

    def _validate_steps(self) -> None:
        rollout = self.rollout
        advantage = self.advantage
        per_step = rollout.problems_per_step
        size = rollout.group_size
        minibatches = self.train.minibatches
        if per_step % minibatches:
            raise ValueError(f"train.minibatches {minibatches} must divide rollout.problems_per_step {per_step}")
        if rollout.max_groups is not None and rollout.max_groups < per_step:
            raise ValueError(f"rollout.max_groups {rollout.max_groups} can never fill a step of {per_step} problems")
        is_taught = self.objective.learns_from_teacher_alone
        if size < advantage.smallest_group and not is_taught:
            raise ValueError(
                f"rollout.group_size {size} gives every episode advantage 0 under advantage.kind {advantage.kind}: "
                f"use at least {advantage.smallest_group}"
            )
        if bool(advantage.columns) != (self.train.critic is not None):
            raise ValueError(
                f"advantage.kind {advantage.kind}: reads the values of a critic, and there is none; add a section "
                "train.critic"
                if advantage.columns
                else f"train.critic: advantage.kind {advantage.kind} reads no values of it; leave it out, or choose gae"
            )
        critic = self.train.critic
        if critic is not None and (is_taught or critic.warmup_steps >= self.train.steps):
            raise ValueError(
                "train.critic: objective.teacher.alone uses no rewards, and so no values; leave one of both out"
                if is_taught
                else f"train.critic.warmup_steps {critic.warmup_steps}: the policy would not learn in any of the "
                f"{self.train.steps} train.steps; give fewer"
            )
        if self.objective.scope == "sequence" and advantage.per == "token":
            raise ValueError(
                f"advantage.kind {advantage.kind} differs from token to token, and objective.kind "
                f"{self.objective.kind} takes one advantage for a whole trajectory; choose decoupled_ppo or ppo"
            )
        if self.needs_sampling_versions and rollout.is_unbounded:
            raise ValueError(
                "rollout.staleness null: objective.proximal sampled and train.ratio_parts_every keep the versions that "
                "may have sampled a token, and nothing bounds these; give a bound"
            )
        if self.train.scale_by_ess and ESS not in self.objective.statistics:
            raise ValueError(
                f"train.scale_by_ess: objective.kind {self.objective.kind} has no behavior weight, so nothing has an "
                f"effective sample size; choose decoupled_ppo, or an objective with the metric {ESS}"
            )
        overlong = self.reward.overlong
        if overlong is not None and overlong.buffer >= rollout.max_new_tokens:
            raise ValueError(
                f"reward.overlong.buffer {overlong.buffer}: must be less than rollout.max_new_tokens "
                f"{rollout.max_new_tokens}, or the penalty would begin before the first token"
            )

    def _validate_model(self) -> None:
        tiny = self.model.tiny
        width = self.engine.tensor_parallel
        if tiny is not None and tiny.heads % width:
            raise ValueError(f"engine.tensor_parallel {width}: must divide model.tiny.heads {tiny.heads}; use another")
        if tiny is not None and any(data.task is None for data in self.data_sections):
            raise ValueError("model.tiny takes its vocabulary from data.task: name a task or give model.path")
        if self.warmup and self.model.tiny is None:
            raise ValueError("warmup: teaches a model.tiny its task; a model of model.path is tuned by `arl sft`")

    def _validate_engine(self) -> None:
        """Compare the recipe with what its backend can do; arl.sync.choose compares transports with the devices."""
        engine = self.engine
        capabilities = engine.capabilities
        validate_supported(self, capabilities, f"the backend {engine.kind}")
        transport = self.sync.transport
        if transport != "auto" and transport not in capabilities.transports:
            can = ", ".join(sorted(capabilities.transports))
            raise ValueError(
                f"sync.transport {transport}: the backend {engine.kind} takes weights by {can}; use auto, or one of "
                "these"
            )
        if self.num_teachers and engine.kind != "embedded" and self.rollout.temperature != 1:
            raise ValueError(
                f"rollout.temperature {self.rollout.temperature:g}: a teacher with place engine and engine.kind "
                f"{engine.kind} scores at temperature 1; use that, or objective.teacher.place trainer"
            )
        if self.sync.check and engine.tensor_parallel > 1:
            raise ValueError("sync.check true: compares whole weights; leave it out, or use engine.tensor_parallel 1")
        has_lag = self.rollout.lag is not None
        if has_lag and self.mode == "collocated":
            raise ValueError("mode collocated: with rollout.lag the trainer runs ahead of engines; use disaggregated")
        if engine.kv_policy == "keep" and has_lag:
            raise ValueError("engine.kv_policy keep: with rollout.lag no swap meets an open request; use recompute")
        if engine.kv_policy == "keep" and self.mode == "collocated":
            raise ValueError("engine.kv_policy keep: collocated engines give up their cache; use recompute")

    def _validate_loads(self) -> None:
        every = self.sync.every
        most = self.rollout.versions_ahead + 1
        if every > 1 and (self.mode == "collocated" or self.rollout.lag is not None):
            raise ValueError(f"sync.every {every}: mode collocated and rollout.lag say when engines load; leave it out")
        if every > most:
            raise ValueError(
                f"sync.every {every}: the trainer is at most {most} versions ahead of the engines (rollout.staleness + "
                f"1; 5 without a bound), and would wait for a load that never comes; give at most {most}"
            )

    def _validate_one_process(self) -> None:
        here = f"world {self.world}"
        if self.rollout.agent is not None:
            raise ValueError(f"rollout.agent {self.rollout.agent}: {here} has no sockets; use world: wall")
        if self.train.ranks > 1:
            raise ValueError(f"train.ranks {self.train.ranks}: {here} trains in one process; use 1 rank")
        for name in ("engine", "train", "reward"):
            section = getattr(self, name)
            if section.environment:
                raise ValueError(f"{name}.environment: {here} starts no processes of that side; leave it out")
            threads = getattr(section, "threads", None)
            if threads not in (None, 1):
                raise ValueError(f"{name}.threads {threads}: {here} computes with one thread; leave it out")
