"""Define the recipe's section about the learning side."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from arl.config.section import (
    Environment,
    FilePath,
    Fraction,
    FractionBelowOne,
    NonNegative,
    NonNegativeFloat,
    Positive,
    PositiveFloat,
    Section,
    Steps,
    Tokens,
    not_reserved,
)


class CriticSection(Section):
    """Train a second model, which predicts what each token's trajectory will still be rewarded with."""

    path: FilePath | None = None
    """Causal language model with the policy's tokenizer, as in `model.path`; one number, 0 at first, takes the place of
    its logits. null: the model that the policy starts from."""
    learning_rate: PositiveFloat = 1e-5
    """Peak; ramp, decay and everything else are those of `train`. Usually above the policy's."""
    warmup_steps: NonNegative = 0
    """First steps of the run, in which the critic learns alone: the policy's learning rate is 0. They count for
    train.ramp_steps too."""
    clip: PositiveFloat | None = None
    """ε: how far an update may follow a value away from the one before the step. null: no bound."""


class Lora(Section):
    """Train adapters of low rank beside frozen weights (LoRA, arXiv 2106.09685), by PEFT."""

    rank: Positive = 8
    """Width of an adapter."""
    alpha: Positive = 16
    """Adapters count alpha / rank times."""
    targets: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    """Last names of the layers that get one, as in [q_proj, v_proj]. null: all linear layers but the head."""


class Train(Section):
    """Configure the learning side."""

    steps: Steps = 60
    """Most versions to produce."""
    tokens: Tokens | None = None
    """End the run with the step that reaches so many loss tokens, to compare runs at equal trained tokens. null: after
    `steps`, to which `decay_to` always refers."""
    minibatches: Positive = 4
    """Optimizer updates per step; must divide problems_per_step."""
    learning_rate: PositiveFloat = 1e-6
    """Peak. Published runs of 0.6B to 1.5B parameters take 1e-6 to 2e-5; a tiny model takes 1e-4 or more."""
    scale_by_ess: bool = False
    """Multiply the rate of each update by the root of the effective sample size of its behavior weights (arXiv
    2602.17616; docs/staleness.md). With objective.proximal sampled these know nothing of staleness."""
    ramp_steps: NonNegative = 0
    """Optimizer updates in which the learning rate rises linearly to its peak."""
    decay_to: Fraction = 1.0
    """Share of the peak that is left at the last update; 1: constant."""
    decay: Literal["linear", "cosine"] = "linear"
    """Shape of the decay to `decay_to`."""
    betas: tuple[FractionBelowOne, FractionBelowOne] = (0.9, 0.99)
    """AdamW's decay of the mean gradient and of the mean squared gradient, per update."""
    eps: PositiveFloat = 1e-8
    """AdamW's addition to the root of the mean squared gradient."""
    weight_decay: NonNegativeFloat = 0.0
    """AdamW's decay of the weights, per unit of learning rate."""
    decayed: Literal["all", "matrices"] = "all"
    """Weights that decay. all: as in AReaL and verl. matrices: those of linear layers, without norms, biases,
    embeddings and a head tied to the embedding."""
    clip_norm: PositiveFloat = 1.0
    """Gradient norm bound."""
    halves_every: NonNegative = 0
    """Steps between measurements of `grad_cosine/stale_fresh`, two forward and backward passes of a minibatch each; 0:
    none."""
    critic: CriticSection | None = None
    """Needed by `advantage: gae`, and by it alone."""
    ratio_parts_every: NonNegative = 0
    """Steps between measurements of the ratio's parts by age (docs/algorithms.md), a forward of the step's tokens under
    each version that sampled one; 0: none. Checkpoints grow by η versions."""
    ranks: Positive = 1
    """FSDP2 world size."""
    min_ranks: Positive | None = None
    """Smallest world size with which `arl train --resume` goes on where GPUs are missing; it takes the largest multiple
    of `shard_ranks` that fits. null: `ranks`."""
    shard_ranks: Positive | None = None
    """Neighboring ranks that share one copy of the weights; must divide ranks. null: those of a node where each node
    has equally many, else all."""
    reshard: bool = False
    """true: free a block's weights after each use and reduce its gradient after each micro-batch: least memory, most
    communication. false: keep both whole during an update."""
    checkpointing: Literal["none", "selective", "full"] = "none"
    """Activations kept for the backward: all; those of linear layers and attention; those at block boundaries. The rest
    is computed again."""
    compile: bool = False
    """torch.compile for each block; not with `checkpointing: selective`."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Compute type; auto: bfloat16 on GPUs, float32 on CPUs. With float16 engine and trainer agree better (arXiv
    2510.26788), but updates whose gradient overflows are skipped. Master weights, reductions and optimizer states are
    float32."""
    head: Literal["auto", "float32"] = "auto"
    """Precision of the logits in trainer and engines. auto: that of `dtype`. float32: engine and trainer agree better;
    chunks of logits are shorter. See docs/gpu.md."""
    lora: Lora | None = None
    """Train adapters alone. null: all weights. A full fine-tuning's learning rate times 10 is a good start."""
    deterministic: bool = False
    """The same weights and batch give the same update to the last bit, on the same GPUs and versions of torch and NCCL;
    docs/gpu.md has the cost. Timing still decides which version samples which token. Always so in `world: virtual`."""
    capacity: Tokens = 16_384
    """Packed tokens per micro-batch; must hold the longest trajectory."""
    packing: Literal["balanced", "algorithm1", "fixed"] = "balanced"
    """How micro-batches are filled. balanced: what is left of each group, spread by FLOPs over as few as possible.
    algorithm1: single sequences, in at least `packing_count` micro-batches per minibatch and rank: that of AReaL's
    paper, not of its code. fixed: `packing_count` sequences each, in the batch's order."""
    packing_count: Positive = 1
    """algorithm1: fewest micro-batches (k_min). fixed: sequences per micro-batch."""
    threads: Positive | None = None
    """CPU threads of one rank. null: a fair share of the cores."""
    environment: Annotated[Environment, not_reserved("train.environment")] = Field(default_factory=dict)
    """More environment variables of the trainer ranks."""

    def is_done(self, version: int, tokens: int) -> bool:
        """Return whether a run ends with `version`, after training so many tokens."""
        return version >= self.steps or (self.tokens is not None and tokens >= self.tokens)

    @model_validator(mode="after")
    def _validate(self) -> "Train":
        if self.shard_ranks is not None and self.ranks % self.shard_ranks:
            raise ValueError(f"train.shard_ranks {self.shard_ranks} must divide train.ranks {self.ranks}")
        if self.min_ranks is not None and self.min_ranks > self.ranks:
            raise ValueError(f"train.min_ranks {self.min_ranks}: must not be more than train.ranks {self.ranks}")
        if self.packing == "balanced" and self.packing_count != 1:
            raise ValueError(f"train.packing_count {self.packing_count}: only with train.packing algorithm1 or fixed")
        if self.compile and self.checkpointing == "selective":
            raise ValueError("train.checkpointing selective: not with train.compile; use full or none")
        return self
