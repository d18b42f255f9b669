"""The typed recipe tree. One YAML file is one complete run; every field has a default, a unit and a docstring.

    YAML text ─► tree with line numbers ─► `--set` overrides ─► Recipe (validated, frozen) ─► recipe.yaml of the run

`load_recipe` raises RecipeError before anything starts: file, line, field, value, rule and the nearest valid name.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from arl.config.engine_section import EngineConfig as EngineConfig
from arl.config.section import (
    Cost,
    Fraction,
    NonNegative,
    Positive,
    PositiveFloat,
    Seconds,
    Section,
)
from arl.config.sync_section import Sync as Sync
from arl.config.train_section import Objective as Objective
from arl.config.train_section import Train as Train


class TinyModel(Section):
    """A Llama-shaped model made on the spot; its vocabulary is the task's."""

    hidden_size: Positive = 128
    """Width of the residual stream, D."""
    layers: Positive = 2
    """Decoder blocks."""
    heads: Positive = 4
    """Attention heads; must divide hidden_size."""
    intermediate_size: Positive = 384
    """Width of the feed-forward."""
    rope_theta: PositiveFloat = 1000.0
    """Base of the rotary embedding."""
    context: Positive = 512
    """Longest sequence, tokens."""

    @model_validator(mode="after")
    def _heads_divide(self) -> "TinyModel":
        if self.hidden_size % (2 * self.heads):
            raise ValueError(
                f"model.tiny.hidden_size {self.hidden_size} must be a multiple of 2 x heads ({2 * self.heads})"
            )
        return self


class Model(Section):
    """Where the weights come from: exactly one of `path` and `tiny`."""

    path: str | None = None
    """Directory or Hugging Face name of a causal language model with its tokenizer."""
    tiny: TinyModel | None = None
    """Make a small model instead; needs a task with its own vocabulary, and usually a warm-up."""

    @model_validator(mode="after")
    def _one_source(self) -> "Model":
        if (self.path is None) == (self.tiny is None):
            raise ValueError("model: give exactly one of model.path and model.tiny")
        return self


class Data(Section):
    """Problems, split into training and evaluation by a hash of their content."""

    task: str | None = None
    """Name of a task that makes its own problems (running_checksum, long_tail)."""
    path: str | None = None
    """Or a jsonl file; one object a line with `prompt` (text or chat messages) and `answer`."""
    size: Positive = 20_000
    """Problems a task makes."""
    eval_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.1
    """Share held out for evaluation."""

    @model_validator(mode="after")
    def _one_source(self) -> "Data":
        if (self.task is None) == (self.path is None):
            raise ValueError("data: give exactly one of data.task and data.path")
        return self


class Warmup(Section):
    """Supervised warm-up before RL: stage (a) until the skill is there, stage (b) bad habits for RL to remove."""

    target_accuracy: Fraction = 0.95
    """Stage (a) ends when sampled accuracy on fresh problems reaches this."""
    max_steps: Positive = 800
    """Stage (a) fails if the target is not reached in so many optimizer steps."""
    batch_size: Positive = 64
    """Sequences per optimizer step."""
    learning_rate: PositiveFloat = 2e-3
    """Peak; 50 steps of ramp, then linear to 10 % at max_steps."""
    eval_every: Positive = 20
    """Optimizer steps between sampled evaluations."""
    eval_samples: Positive = 256
    """Problems per sampled evaluation."""
    noise_steps: NonNegative = 50
    """Stage (b): optimizer steps on noisy demonstrations."""
    noise_learning_rate: PositiveFloat = 1e-3
    """Constant in stage (b)."""
    blurt: Fraction = 0.7
    """Stage (b): share of demonstrations that answer without working."""
    slip: Fraction = 0.1
    """Stage (b): chance of an error at each working step."""


class LagFile(Section):
    """Lags from a file: one of the two."""

    dist: str | None = None
    """JSON or YAML file that maps lag to weight, like {0: 0.5, 2: 0.5}; each group draws its own, by the seed."""
    trace: str | None = None
    """Directory of a finished run of the same model, data and batch: each group is as stale as its own was."""


class Rollout(Section):
    """What is generated, and how far generation may run ahead of training."""

    problems_per_step: Positive = 32
    """P: groups consumed by one training step."""
    group_size: Positive = 8
    """G: episodes per problem."""
    staleness: NonNegative | None = 4
    """η: no token older than this many versions is ever trained; 0 is synchronous RL. null with `lag`, else 4."""
    lag: NonNegative | LagFile | None = None
    """Exact lag in place of the bound, versions: every token that step v trains is min(lag, v) old. A number,
    {dist: FILE} or {trace: RUN}; see docs/staleness.md. A step may wait for what lag + 1 versions sample, one after
    the other: deadlines.step must cover it."""
    late: Literal["wait", "drop"] = "wait"
    """A step that would make a late group too old waits for it, or abandons it and re-queues its problem."""
    max_requeues: NonNegative = 2
    """late: drop — times one problem may be re-queued before it is given up (counted)."""
    max_groups: Positive | None = None
    """Cap on groups in flight; none: the staleness gate alone, (η+1)·P at most, or the lags."""
    max_new_tokens: Positive = 48
    """Token budget of one episode."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature; behavior_logprobs are log_softmax(logits / temperature)."""
    env: str = "arl.rollout.env:single_turn"
    """`module:function` that drives one episode."""
    max_failures: Positive = 8
    """Groups that may fail in a row before the run ends with a diagnosis."""
    filter: str | None = None
    """`module:function` (problem, trajectories) -> bool: which finished groups are trained; none: all of them.
    arl.rollout.filters:reward_varies is the dynamic sampling of DAPO."""
    max_rejects: Positive = 256
    """Groups that may be rejected in a row, by filter or env, before the run ends with a diagnosis."""

    @model_validator(mode="before")
    @classmethod
    def _no_default_bound_beside_a_lag(cls, values: Any) -> Any:
        return {"staleness": None} | values if isinstance(values, dict) and values.get("lag") is not None else values

    @field_validator("lag", mode="before")
    @classmethod
    def _number_or_one_file(cls, lag: Any) -> Any:
        if lag is None or isinstance(lag, LagFile) or (type(lag) is int and lag >= 0):
            return lag
        files = {kind: file for kind, file in lag.items() if file is not None} if isinstance(lag, dict) else {}
        if [(kind in LagFile.model_fields, type(file)) for kind, file in files.items()] == [(True, str)]:
            return files
        raise ValueError(f"rollout.lag {lag!r}: give a whole number of versions ≥ 0, {{dist: FILE}} or {{trace: RUN}}")

    @model_validator(mode="after")
    def _bound_or_lag(self) -> "Rollout":
        exact = self.lag is not None
        if not exact and self.staleness is None:
            raise ValueError("rollout.staleness null: only rollout.lag takes its place; give a bound, like 4")
        if exact and self.staleness is not None:
            raise ValueError(f"rollout.staleness {self.staleness}: rollout.lag is exact; set one of the two to null")
        if exact and self.late == "drop":
            raise ValueError("rollout.late drop: with rollout.lag no group is ever late; use wait")
        if exact and self.max_groups is not None:
            raise ValueError(f"rollout.max_groups {self.max_groups}: rollout.lag says what is in flight; leave it out")
        return self


class Reward(Section):
    """How episodes are scored, in worker processes."""

    function: str | None = None
    """`module:function` (problem, response, truncated) -> float; none: the task's own."""
    workers: Positive = 1
    """Worker processes."""


class Eval(Section):
    """Sampled accuracy on held-out problems, before and after training."""

    problems: NonNegative = 512
    """0: no evaluation."""
    temperature: PositiveFloat = 1.0
    """Sampling temperature."""


class Deadlines(Section):
    """Every wait has one, in seconds; when it passes, the run ends and says who waited on whom.

    An engine that misses one is first restarted, as often as engine.max_restarts allows.
    """

    startup: Seconds = 120.0
    """A process, from its start until it is ready."""
    step: Seconds = 600.0
    """One training step, and the wait for a batch."""
    swap: Seconds = 60.0
    """One weight publication and one swap."""
    generate: Seconds = 600.0
    """An engine that produces nothing for an open request: it is killed, and started again."""
    reward: Seconds = 10.0
    """One call of the reward function."""
    shutdown: Seconds = 10.0
    """A process asked to end, before it is killed."""

    @property
    def swap_and_restart(self) -> float:
        """A swap in which an engine falls silent, for `swap`, is started again, and loads the weights."""
        return self.swap + self.startup + self.swap


class VirtualCosts(Section):
    """What each operation takes under `clock: virtual`, in virtual seconds: set them to imitate other hardware.

    The defaults imitate the quickstart on a laptop. An engine pass takes engine_pass + decode_token · rows that
    decode + prefill_token · prompt tokens; a training step takes train_step + trained_token · loss tokens.
    """

    engine_pass: Cost = 1e-3
    """One pass of one replica, whatever it holds; seconds."""
    decode_token: Cost = 20e-6
    """Each request that decodes a token in a pass; seconds."""
    prefill_token: Cost = 20e-6
    """Each token of a new prompt in a pass, shared prompts once; seconds."""
    train_step: Cost = 30e-3
    """One training step, whatever it holds; seconds."""
    trained_token: Cost = 20e-6
    """Each loss token of a step; seconds."""
    snapshot: Cost = 0.5e-3
    """The copy of the weights after a step, during which the trainer waits; seconds."""
    publish: Cost = 5e-3
    """Writing a snapshot where engines can load it, one after the other, while the trainer goes on; seconds."""
    load: Cost = 5e-3
    """Loading published weights into one replica, which is paused meanwhile; seconds."""
    reward: Cost = 0.2e-3
    """One call of the reward function; reward.workers groups are scored at a time; seconds."""


class Output(Section):
    """What a run leaves behind."""

    directory: str = "runs"
    """The run directory is <directory>/<name>; a finished run of that name is never overwritten."""
    checkpoint_every: NonNegative = 0
    """Steps between saved models; 0: only the last."""
    trajectories: bool = True
    """Write every trajectory that was trained or lost to Parquet, with its fate."""
    wandb: Literal["off", "offline", "online"] = "off"
    """Mirror metrics.jsonl to Weights & Biases."""
    wandb_project: str = "arl"
    """Its project there."""


class Recipe(Section):
    """One complete run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    """Names the run directory."""
    seed: NonNegative = 0
    """Everything but timing repeats with it."""
    mode: Literal["disaggregated", "collocated"] = "disaggregated"
    """Engines and trainer run at once on their own devices, or take turns on the same."""
    clock: Literal["wall", "virtual"] = "wall"
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
        self.sync.refuse_impossible(self.clock, engine.kind, engine.tensor_parallel, exact)
        if exact:
            self._possible_with_a_lag()
        cap = self.rollout.max_groups
        if cap is not None and cap < p:
            raise ValueError(f"rollout.max_groups {cap} can never fill a step of {p} problems")
        if self.clock == "virtual":
            self._possible_virtually()
        return self

    def _possible_with_a_lag(self) -> None:
        if self.mode == "collocated":
            raise ValueError("mode collocated: with rollout.lag the trainer runs ahead of engines; use disaggregated")
        if self.engine.kv_policy == "keep":
            raise ValueError("engine.kv_policy keep: with rollout.lag no swap meets an open request; use recompute")

    def _possible_virtually(self) -> None:
        if self.engine.kind != "embedded":
            raise ValueError(f"engine.kind {self.engine.kind}: clock virtual generates in this process; use embedded")
        if self.train.ranks > 1:
            raise ValueError(f"train.ranks {self.train.ranks}: clock virtual trains in one process; use 1 rank")
        for field, threads in (("train", self.train.threads), ("engine", self.engine.threads)):
            if threads not in (None, 1):
                raise ValueError(f"{field}.threads {threads}: clock virtual computes with one thread; leave it out")
